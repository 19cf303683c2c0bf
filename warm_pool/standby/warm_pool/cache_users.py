"""Who uses which artifact: what has a user is never evicted, by no process on the same cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from standby.warm_pool.cache_temporary import FileLock


class Users:
    """Counts users by artifact; the first takes the artifact's shared lock, the last gives it back."""

    def __init__(self, lock_use: Callable[[str], FileLock]) -> None:
        self._lock_use = lock_use
        self._users: dict[str, Counter[str]] = {}
        self._locks: dict[str, FileLock] = {}

    def add(self, digest: str, user: str) -> None:
        """One more use of ``digest`` by ``user``."""
        if digest not in self._users:
            self._locks[digest] = self._lock_use(digest)
            self._users[digest] = Counter()
        self._users[digest][user] += 1

    def remove(self, digest: str, user: str) -> None:
        """One use less."""
        users = self._users.get(digest, Counter())
        assert users[user] > 0, f"artifact {digest} was not pinned by {user!r}"
        users[user] -= 1
        if users[user] == 0:
            del users[user]
        if not users:
            del self._users[digest]
            self._locks.pop(digest).release()

    def of(self, digest: str) -> tuple[str, ...]:
        """Return the users' names, in order; empty when there is none."""
        return tuple(sorted(self._users.get(digest, ())))

    def clear(self) -> None:
        """Forget all."""
        for lock in self._locks.values():
            lock.release()
        self._locks.clear()
        self._users.clear()
