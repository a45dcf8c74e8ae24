"""The digits example on several ranks: each computes the gradients of its part of every batch, and all use the sum.

The ranks connect at ``MASTER_ADDR``:``MASTER_PORT``, which every job of several ranks has. All ranks have the same
weights, so rank 0 saves the checkpoint for all, and a paused run can be resumed with another number of ranks. The rank
that receives a pause request adds it to the next sum, so all ranks stop after the same step.

    jupyter gpu-quota submit --nodes 4 --min-nodes 2 -- python -m jupyter_gpu_quota.examples.digits_ranks --epochs 60
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time

from jupyter_gpu_quota import job
from jupyter_gpu_quota.examples import digits  # before numpy: it sets one thread per process

import numpy as np  # isort: skip
from numpy.typing import NDArray  # isort: skip

PEER_TIMEOUT_S = 60.0
"""A rank that does not answer for this long counts as lost."""


class ProcessGroup:
    """All ranks of this attempt. Rank 0 adds up the arrays of the others, in the order of ranks, and sends the sum."""

    def __init__(self) -> None:
        self.rank, self.size = job.rank(), job.ranks()
        address = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "0"))
        self.others = self._accept(address) if self.rank == 0 else [self._connect(address)]

    def _accept(self, address: tuple[str, int]) -> list[socket.socket]:
        found: dict[int, socket.socket] = {}
        with socket.create_server(address) as listening:
            listening.settimeout(PEER_TIMEOUT_S)
            while len(found) < self.size - 1:
                other, _ = listening.accept()
                other.settimeout(PEER_TIMEOUT_S)
                found[int.from_bytes(received(other, 4), "big")] = other
        return [found[rank] for rank in sorted(found)]

    def _connect(self, address: tuple[str, int]) -> socket.socket:
        until = time.monotonic() + PEER_TIMEOUT_S
        while True:
            try:
                first = socket.create_connection(address, timeout=PEER_TIMEOUT_S)
            except ConnectionRefusedError:  # rank 0 does not listen yet
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
    """Receive ``size`` bytes. Raises ConnectionError where the other rank ended."""
    parts = bytearray()
    while len(parts) < size:
        part = other.recv(size - len(parts))
        if not part:
            raise ConnectionError("another rank ended")
        parts += part
    return bytes(parts)


class SharedTraining(digits.Training):
    """Training on every rank at once; each takes its part of a batch."""

    def __init__(self, seed: int, width: int, group: ProcessGroup) -> None:
        super().__init__(seed, width)
        self.group = group

    def step(self, images: digits.Floats, labels: NDArray[np.int64]) -> None:
        """One batch; raises Paused on all ranks after the step in which one of them received a pause request."""
        chosen = self.order[self.position : self.position + digits.BATCH]
        mine = chosen[self.group.rank :: self.group.size]
        loss, gradients = digits.loss_and_gradients(self.weights, images[mine], labels[mine])
        part = len(mine) / len(chosen)
        requested = float(job.pause_requested())
        shares = [np.array([requested, loss * part]), *(gradient.ravel() * part for gradient in gradients)]
        total = self.group.sum(np.concatenate(shares))
        self._update_weights(total[2:])
        self.loss_sum += float(total[1]) * len(chosen)
        self.position += len(chosen)
        if total[0] > 0:
            self.save_and_pause()

    def _update_weights(self, gradient: digits.Floats) -> None:
        first = 0
        for weight, speed in zip(self.weights, self.speeds, strict=True):
            speed *= digits.MOMENTUM
            speed -= digits.RATE * gradient[first : first + weight.size].reshape(weight.shape)
            weight += speed
            first += weight.size

    def save_and_pause(self) -> None:
        self.save_shared()
        raise digits.Paused

    def save_shared(self) -> None:
        if self.group.rank == 0:
            self.save(job.checkpoint_path(digits.CHECKPOINT))


def run(options: argparse.Namespace) -> None:
    images, labels = digits.digits()
    group = ProcessGroup()
    training = SharedTraining(options.seed, options.width, group)
    if job.checkpoint_path(digits.CHECKPOINT).exists():
        training.load(job.checkpoint_path(digits.CHECKPOINT))
    print(f"rank {group.rank} of {group.size} begins at epoch {training.epoch}", flush=True)
    while training.epoch < options.epochs:
        while training.position < digits.TRAIN:
            time.sleep(options.step_ms / 1000)
            training.step(images[: digits.TRAIN], labels[: digits.TRAIN])
        loss = training.next_epoch()
        if group.rank == 0:
            job.report_progress(training.epoch, options.epochs, loss=loss, ranks=group.size)
        if training.epoch % options.save_every == 0 or training.epoch == options.epochs:
            training.save_shared()
        print(f"epoch {training.epoch} loss {loss:.4f}", flush=True)
    if group.rank == 0:
        digits.finish(training, images, labels)
    job.complete()


def main(arguments: list[str] | None = None) -> int:
    """Train, or continue from a checkpoint. Returns 0 when done, 75 when saved after a pause request."""
    parser = argparse.ArgumentParser(description="Learn handwritten digits on several ranks.")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--width", type=int, default=128, help="neurons of the hidden layer: more is slower and better")
    parser.add_argument("--step-ms", type=int, default=0, help="pause before each of the 30 steps of an epoch")
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
