"""The digits example on several ranks: each computes the gradients of its part of every batch, and all use the sum.

The ranks meet at ``MASTER_ADDR``:``MASTER_PORT``, which every job of several ranks gets. All keep the same weights, so
the checkpoint of rank 0 is that of all: a paused run can be resumed with as many ranks or another number. The rank that
receives a pause request adds it to the next sum, so all ranks stop after the same step.

    jupyter gpu-quota submit --nodes 4 --min-nodes 2 -- python -m jupyter_gpu_quota.examples.digits_ranks --epochs 60
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time

from jupyter_gpu_quota import job
from jupyter_gpu_quota.examples import digits  # before numpy: it asks for one thread per process

import numpy as np  # isort: skip
from numpy.typing import NDArray  # isort: skip

PATIENCE_S = 60.0
"""How long a rank waits for another before that counts as lost."""


class Meeting:
    """All ranks of this attempt. Rank 0 adds up the arrays of the others, in the order of ranks, and sends the sum."""

    def __init__(self) -> None:
        self.rank, self.size = job.rank(), job.ranks()
        where = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "0"))
        self.others = self._accept(where) if self.rank == 0 else [self._connect(where)]

    def _accept(self, where: tuple[str, int]) -> list[socket.socket]:
        found: dict[int, socket.socket] = {}
        with socket.create_server(where) as listening:
            listening.settimeout(PATIENCE_S)
            while len(found) < self.size - 1:
                other, _ = listening.accept()
                other.settimeout(PATIENCE_S)
                found[int.from_bytes(received(other, 4), "big")] = other
        return [found[rank] for rank in sorted(found)]

    def _connect(self, where: tuple[str, int]) -> socket.socket:
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                first = socket.create_connection(where, timeout=PATIENCE_S)
            except ConnectionRefusedError:  # rank 0 is not there yet
                if time.monotonic() >= until:
                    raise
                time.sleep(0.02)
                continue
            first.sendall(self.rank.to_bytes(4, "big"))
            return first

    def sum(self, own: digits.Floats) -> digits.Floats:
        """The sum over all ranks, the same to the last bit on each; arrays of one shape."""
        if self.rank > 0:
            self.others[0].sendall(own.tobytes())
            return array_from(self.others[0], own)
        total = own.copy()
        for other in self.others:
            total += array_from(other, own)
        for other in self.others:
            other.sendall(total.tobytes())
        return total


def array_from(other: socket.socket, like: digits.Floats) -> digits.Floats:
    return np.frombuffer(received(other, like.nbytes)).reshape(like.shape)


def received(other: socket.socket, size: int) -> bytes:
    """So many bytes; raises ConnectionError where the other rank has ended."""
    parts = bytearray()
    while len(parts) < size:
        part = other.recv(size - len(parts))
        if not part:
            raise ConnectionError("another rank has left")
        parts += part
    return bytes(parts)


class SharedTraining(digits.Training):
    """Training on every rank at once; each takes its part of a batch."""

    def __init__(self, seed: int, width: int, meeting: Meeting) -> None:
        super().__init__(seed, width)
        self.meeting = meeting

    def step(self, images: digits.Floats, labels: NDArray[np.int64]) -> None:
        """One batch; raises Paused on all ranks after the step in which one of them received a pause request."""
        chosen = self.order[self.position : self.position + digits.BATCH]
        mine = chosen[self.meeting.rank :: self.meeting.size]
        loss, gradients = digits.loss_and_gradients(self.weights, images[mine], labels[mine])
        part = len(mine) / len(chosen)
        asked = float(job.pause_requested())
        shares = [np.array([asked, loss * part]), *(gradient.ravel() * part for gradient in gradients)]
        total = self.meeting.sum(np.concatenate(shares))
        self._learn(total[2:])
        self.loss_sum += float(total[1]) * len(chosen)
        self.position += len(chosen)
        if total[0] > 0:
            self.leave()

    def _learn(self, slopes: digits.Floats) -> None:
        first = 0
        for weight, speed in zip(self.weights, self.speeds, strict=True):
            speed *= digits.MOMENTUM
            speed -= digits.RATE * slopes[first : first + weight.size].reshape(weight.shape)
            weight += speed
            first += weight.size

    def leave(self) -> None:
        self.keep()
        raise digits.Paused

    def keep(self) -> None:
        if self.meeting.rank == 0:
            self.save(job.checkpoint_path(digits.CHECKPOINT))


def run(options: argparse.Namespace) -> None:
    images, labels = digits.digits()
    meeting = Meeting()
    training = SharedTraining(options.seed, options.width, meeting)
    if job.checkpoint_path(digits.CHECKPOINT).exists():
        training.load(job.checkpoint_path(digits.CHECKPOINT))
    print(f"rank {meeting.rank} of {meeting.size} begins at epoch {training.epoch}", flush=True)
    while training.epoch < options.epochs:
        while training.position < digits.TRAIN:
            time.sleep(options.step_ms / 1000)
            training.step(images[: digits.TRAIN], labels[: digits.TRAIN])
        loss = training.next_epoch()
        if meeting.rank == 0:
            job.report_progress(training.epoch, options.epochs, loss=loss, ranks=meeting.size)
        if training.epoch % options.save_every == 0 or training.epoch == options.epochs:
            training.keep()
        print(f"epoch {training.epoch} loss {loss:.4f}", flush=True)
    if meeting.rank == 0:
        digits.finish(training, images, labels)
    job.complete()


def main(arguments: list[str] | None = None) -> int:
    """Train, or go on training. Returns 0 when done, 75 when saved on request."""
    parser = argparse.ArgumentParser(description="Learn handwritten digits on several ranks.")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--width", type=int, default=128, help="neurons of the hidden layer: more is slower and better")
    parser.add_argument("--step-ms", type=int, default=0, help="rest before each of the 30 steps of an epoch")
    parser.add_argument("--save-every", type=int, default=5, help="epochs between two checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    try:
        run(parser.parse_args(arguments))
    except digits.Paused:
        print("paused, saved", flush=True)
        return job.CHECKPOINTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
