"""The cells of a fake context: of all sequences together or, divided, of each its own."""

from collections.abc import Iterable, Sequence


class Cells:
    """Which of them are free. A cell is a number; divided ones are numbered through, sequence after sequence."""

    def __init__(self, n_cells: int, n_seq_max: int, *, unified: bool) -> None:
        self.n_ctx = n_cells if unified else n_cells // n_seq_max  # most cells of one sequence
        self._first = [0] * n_seq_max if unified else [seq * self.n_ctx for seq in range(n_seq_max)]
        # By the first cell of each part; the next one to take stands last.
        self._free = {first: list(range(first + self.n_ctx - 1, first - 1, -1)) for first in self._first}
        self._n_lost = 0

    @property
    def n_cells(self) -> int:
        return self.n_ctx * len(self._free)

    def n_free(self, seq: int) -> int:
        """How many `seq` could have."""
        return len(self._free[self._first[seq]])

    def suffice(self, wanted: Iterable[tuple[int, int]]) -> bool:
        """Return whether there are enough cells for all pairs of (seq, count)."""
        needed = dict.fromkeys(self._free, 0)
        for seq, count in wanted:
            needed[self._first[seq]] += count
        return all(count <= len(self._free[first]) for first, count in needed.items())

    def take(self, seq: int, count: int) -> list[int]:
        free = self._free[self._first[seq]]
        return [free.pop() for _ in range(count)]

    def give_back(self, cells: Iterable[int]) -> None:
        for cell in cells:
            self._free[cell // self.n_ctx * self.n_ctx].append(cell)

    def lose(self, count: int) -> None:
        """Have so many fewer than `n_cells` says, as a context with sliding windows may: of the first part."""
        del self._free[0][:count]
        self._n_lost += count

    def check(self, held: Sequence[Iterable[int]]) -> None:
        """Every cell is free or held, never both, and held by sequences whose it is; `held` is by sequence."""
        free = [cell for part in self._free.values() for cell in part]
        taken = {cell for cells in held for cell in cells}
        assert len(free) == len(set(free)) == self.n_cells - self._n_lost - len(taken)
        assert taken.isdisjoint(free)
        for first, cells in zip(self._first, held, strict=True):
            assert all(first <= cell < first + self.n_ctx for cell in cells), "another sequence's part"
