"""The one exception a user should ever meet."""


class CrossdraftError(Exception):
    """Bad input or a broken environment, told in one clear sentence: what, where, how to mend.

    The command line prints the sentence and leaves with status 2; a traceback means a bug of ours.
    """
