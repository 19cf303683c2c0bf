"""What the operating system gives: children that never outlive their parent, private files; and sealed secrets."""
