"""Child processes that never outlive their parent, and that end as a whole group."""
