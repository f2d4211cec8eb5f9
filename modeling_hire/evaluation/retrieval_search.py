"""Finding the nearest embeddings: exactly, in chunks, or with a FAISS index."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

from .extras import import_extra
from .geometry_measures import unit_vectors


# A number of a document takes the lower half of a sorting key.
_LOW = 0xFFFFFFFF


class SearchIndex(Protocol):
    """Documents that can be searched by cosine."""

    nbytes: int

    def search(self, queries: np.ndarray, k: int, own: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The k nearest documents of each query.

        Args:
            queries: embeddings (q, d).
            k: how many; fewer where there are not so many documents.
            own: (q,) for each query the document that is the query itself, to be left out; -1 for none.

        Returns:
            The documents' numbers and cosines, (q, k) each, best first; -1 and -inf where there are no more.
        """
        ...


class ExactIndex:
    """Compares each query with every document, a block at a time; the whole matrix is never held.

    Documents with equal cosines come in the order of their numbers, whatever the blocks.

    Args:
        documents: embeddings (n, d), n up to 4 billion.
        device: where to search.
        query_chunk, document_chunk: the size of a block.

    Raises:
        ValueError: if the embeddings are not one finite vector a document.

    Example:
        >>> index = ExactIndex(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
        >>> index.search(np.array([[1.0, 0.1]]), 2)[0]
        array([[0, 2]])
        >>> index.search(np.array([[1.0, 0.1]]), 2, own=np.array([0]))[0]
        array([[2, 1]])
    """

    def __init__(
        self,
        documents: np.ndarray,
        device: str | torch.device = "cpu",
        query_chunk: int = 256,
        document_chunk: int = 8192,
    ):
        for name, value in (("query_chunk", query_chunk), ("document_chunk", document_chunk)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}: allowed is a whole number from 1 on.")
        self.documents = unit_vectors(documents).to(device)
        self.query_chunk, self.document_chunk = query_chunk, document_chunk
        self.nbytes = self.documents.nbytes

    @torch.no_grad()
    def search(self, queries: np.ndarray, k: int, own: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """See [`SearchIndex`]."""
        vectors = _checked_queries(queries, self.documents.shape[1], k, own).to(self.documents.device)
        left_out = torch.full((len(vectors),), -1) if own is None else torch.as_tensor(own, dtype=torch.int64)
        numbers, cosines = [], []
        for start in range(0, len(vectors), self.query_chunk):
            rows = slice(start, start + self.query_chunk)
            keys = self._best_keys(vectors[rows], min(k, len(self.documents)), left_out[rows].to(vectors.device))
            values = _float_of(keys)
            numbers.append(torch.where(values > -torch.inf, _LOW - (keys & _LOW), -1).cpu())
            cosines.append(values.cpu())
        return torch.cat(numbers).numpy(), torch.cat(cosines).numpy()

    def _best_keys(self, queries: torch.Tensor, k: int, own: torch.Tensor) -> torch.Tensor:
        best = queries.new_empty((len(queries), 0), dtype=torch.int64)
        for start in range(0, len(self.documents), self.document_chunk):
            block = self.documents[start : start + self.document_chunk]
            # Not in half precision, whose cosines tie with their neighbours. And in float64 where there is one: the
            # last bits of a product depend on the shape of the block, and equal documents would be told apart by it.
            exact = torch.float32 if queries.device.type == "mps" else torch.float64
            with torch.autocast(queries.device.type, enabled=False):
                cosines = (queries.to(exact) @ block.to(exact).T).float()
            rows = ((own >= start) & (own < start + len(block))).nonzero().squeeze(1)
            cosines[rows, own[rows] - start] = -torch.inf
            best = torch.cat([best, _block_keys(cosines, start, min(k, len(block)))], dim=1)
            best = best.topk(min(k, best.shape[1]), dim=1).values
        return best


def _block_keys(cosines: torch.Tensor, start: int, k: int) -> torch.Tensor:
    """The keys of the k best of each row; the first column is document `start`."""
    values, columns = cosines.topk(k, dim=1)
    keys = _keys(values, columns + start)
    # Where more documents than fit share the last place, which of them topk takes is anyone's guess.
    crowded = ((cosines >= values[:, -1:]).sum(dim=1) > k).nonzero().squeeze(1)
    if len(crowded):
        numbers = torch.arange(start, start + cosines.shape[1], device=cosines.device)
        keys[crowded] = _keys(cosines[crowded], numbers).topk(k, dim=1).values
    return keys


def _keys(cosines: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """One integer for each cosine and document, in the order of rising cosine and falling number."""
    bits = (cosines + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    # The bits of a float sort as integers do, those of negative ones the other way round.
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64)
    return (ordered << 32) | (_LOW - numbers)


def _float_of(keys: torch.Tensor) -> torch.Tensor:
    ordered = (keys >> 32).to(torch.int32)
    return torch.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).view(torch.float32)


class FaissIndex:
    """Searches with FAISS, for corpora too large to compare with one by one.

    Args:
        documents: embeddings (n, d).
        factory: FAISS's description of the index: `"Flat"` (exact), `"HNSW32"`, `"IVF1024,Flat"`, `"IVF1024,PQ32"`,
            ... Those with cells or codes are trained on the documents.

    Raises:
        ImportError: if FAISS is not installed.
        ValueError: if FAISS cannot make such an index.

    Example:
        >>> index = FaissIndex(np.eye(3, dtype=np.float32))  # doctest: +SKIP
        >>> index.search(np.array([[0.1, 0.9, 0.2]]), 2)[0]  # doctest: +SKIP
        array([[1, 2]])
    """

    def __init__(self, documents: np.ndarray, factory: str = "Flat"):
        vectors = unit_vectors(documents).numpy()
        self.index = make_faiss_index(vectors.shape[1], factory)
        try:
            if not self.index.is_trained:
                self.index.train(vectors)
            self.index.add(vectors)
        except RuntimeError as error:
            raise _faiss_error(factory, error) from error
        self.nbytes = _faiss_bytes(self.index)

    def search(self, queries: np.ndarray, k: int, own: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """See [`SearchIndex`]."""
        vectors = _checked_queries(queries, self.index.d, k, own).numpy()
        k = min(k, self.index.ntotal)
        if own is None:
            cosines, numbers = self.index.search(vectors, k)
            return numbers, np.where(numbers < 0, -np.inf, cosines)
        cosines, numbers = self.index.search(vectors, min(k + 1, self.index.ntotal))
        # One more, so that k are left; what is left out goes to the end.
        out = (numbers == own[:, None]) & (numbers >= 0)
        cosines, numbers = np.where(out | (numbers < 0), -np.inf, cosines), np.where(out, -1, numbers)
        order = np.argsort(numbers < 0, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(numbers, order, 1), np.take_along_axis(cosines, order, 1)


def make_faiss_index(width: int, factory: str) -> Any:
    """An empty FAISS index for vectors of `width` dimensions, compared by cosine.

    Raises:
        ImportError: if FAISS is not installed.
        ValueError: if FAISS cannot make such an index.
    """
    faiss = import_extra("faiss", "faiss", "index='faiss'")
    try:
        return faiss.index_factory(width, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise _faiss_error(factory, error) from error


def _faiss_error(factory: str, error: RuntimeError) -> ValueError:
    # FAISS puts its function, file and line in front of what is wrong.
    reason = str(error).strip().splitlines()[0].rpartition(": ")[2]
    return ValueError(f"faiss_factory={factory!r}: FAISS cannot make this index: {reason}")


def _faiss_bytes(index: Any) -> int:
    """What the index takes, counted as it would be written; nothing is written or held."""
    faiss = import_extra("faiss", "faiss", "index='faiss'")
    total = 0

    def count(block: bytes) -> int:
        nonlocal total
        total += len(block)
        return len(block)

    faiss.write_index(index, faiss.PyCallbackIOWriter(count))
    return total


def _checked_queries(queries: np.ndarray, width: int, k: int, own: np.ndarray | None) -> torch.Tensor:
    vectors = unit_vectors(queries)
    if vectors.shape[1] != width:
        raise ValueError(f"queries: {vectors.shape[1]} dimensions; allowed are the documents', {width}.")
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"k={k!r}: allowed is a whole number from 1 on.")
    if own is not None and np.shape(own) != (len(vectors),):
        raise ValueError(f"own: shape {np.shape(own)}; allowed is one number a query, {len(vectors)}.")
    return vectors
