"""Whole numbers in English words, as the package num2words writes them: SmolVLM's prompts use them for frames."""

ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def number_words(number: int) -> str:
    """Words for a number from 0 to 999,999.

    >>> number_words(8), number_words(64), number_words(110), number_words(2301)
    ('eight', 'sixty-four', 'one hundred and ten', 'two thousand, three hundred and one')
    """
    if number < len(ONES):
        return ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return TENS[tens] + (f"-{ONES[ones]}" if ones else "")
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        return f"{ONES[hundreds]} hundred" + (f" and {number_words(rest)}" if rest else "")
    thousands, rest = divmod(number, 1000)
    joint = ", " if rest >= 100 else " and "
    return f"{number_words(thousands)} thousand" + (joint + number_words(rest) if rest else "")
