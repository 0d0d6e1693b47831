"""Running a drafter: in this process, or in another one beside the target."""
