"""A drafter beside an event camera, for a target in the cloud: the frames between them, and both ends of the link."""
