"""Running a drafter: in this process, in another one, and in parallel with the target."""
