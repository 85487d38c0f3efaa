"""Files that people and strangers give, read with limits; and files of ours, written in one step."""
