"""A small training job: handwritten digits, a network of one hidden layer, plain numpy.

The data are the 1,797 images of 8 x 8 pixels in scikit-learn. The job saves checkpoints while it trains. A run that was
paused and resumed, however often, ends with exactly the same loss as one without a pause.

    python -m jupyter_gpu_quota.examples.digits --epochs 60
"""

# ruff: noqa: E402

from __future__ import annotations

import os

# Sums over several threads are added in no fixed order; one thread each also suits a shared machine.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import gzip
import importlib.util
import json
import sys
import time
from pathlib import Path

from jupyter_gpu_quota import job

job.pause_requested()  # from here on SIGTERM requests a pause and does not end the process at once

import numpy as np
from numpy.typing import NDArray

PIXELS, CLASSES, TRAIN = 64, 10, 1500
BATCH, RATE, MOMENTUM = 50, 0.05, 0.9
CHECKPOINT = "digits.npz"

Floats = NDArray[np.float64]


class Paused(Exception):
    """The run was paused by the queue; everything is saved."""


class Training:
    """The whole state of a run: a resumed run continues from it with equal bits."""

    def __init__(self, seed: int, width: int) -> None:
        self.rng = np.random.default_rng(seed)
        scale = np.sqrt(2 / PIXELS), np.sqrt(2 / width)
        self.weights: list[Floats] = [
            self.rng.normal(0, scale[0], (PIXELS, width)),
            np.zeros(width),
            self.rng.normal(0, scale[1], (width, CLASSES)),
            np.zeros(CLASSES),
        ]
        self.speeds: list[Floats] = [np.zeros_like(weight) for weight in self.weights]
        self.epoch, self.position, self.loss_sum = 0, 0, 0.0
        self.order = self.rng.permutation(TRAIN)

    def save(self, path: Path) -> None:
        """Write the state; an interrupted save leaves the previous checkpoint."""
        arrays = {f"weight{i}": weight for i, weight in enumerate(self.weights)}
        arrays |= {f"speed{i}": speed for i, speed in enumerate(self.speeds)}
        state = {"chance": self.rng.bit_generator.state, "epoch": self.epoch, "position": self.position}
        with job.saving(path) as part:
            np.savez(part, state=json.dumps(state), loss_sum=self.loss_sum, order=self.order, **arrays)  # type: ignore[arg-type]

    def load(self, path: Path) -> None:
        """Load the state from a checkpoint; raises ValueError if it was made with another width."""
        with np.load(path) as saved:
            if saved["weight1"].shape != self.weights[1].shape:
                raise ValueError(f"{path} was saved by a network of another width; use the same --width, or remove it")
            self.weights = [saved[f"weight{i}"] for i in range(4)]
            self.speeds = [saved[f"speed{i}"] for i in range(4)]
            state = json.loads(str(saved["state"]))
            self.loss_sum, self.order = float(saved["loss_sum"]), saved["order"]
        self.rng.bit_generator.state = state["chance"]
        self.epoch, self.position = state["epoch"], state["position"]

    def step(self, images: Floats, labels: NDArray[np.int64]) -> None:
        """One batch of the epoch's order, by gradient descent with momentum."""
        chosen = self.order[self.position : self.position + BATCH]
        loss, gradients = loss_and_gradients(self.weights, images[chosen], labels[chosen])
        for weight, speed, gradient in zip(self.weights, self.speeds, gradients, strict=True):
            speed *= MOMENTUM
            speed -= RATE * gradient
            weight += speed
        self.loss_sum += loss * len(chosen)
        self.position += len(chosen)

    def next_epoch(self) -> float:
        """End the epoch. Returns its mean loss."""
        loss = self.loss_sum / TRAIN
        self.epoch, self.position, self.loss_sum = self.epoch + 1, 0, 0.0
        self.order = self.rng.permutation(TRAIN)
        return loss


def forward(weights: list[Floats], images: Floats) -> tuple[Floats, Floats]:
    """The hidden layer's activity, and the probability of each class."""
    hidden = np.maximum(images @ weights[0] + weights[1], 0)
    scores = hidden @ weights[2] + weights[3]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, powers / powers.sum(axis=1, keepdims=True)


def loss_and_gradients(weights: list[Floats], images: Floats, labels: NDArray[np.int64]) -> tuple[float, list[Floats]]:
    """The mean cross-entropy of a batch, and its gradient."""
    hidden, probabilities = forward(weights, images)
    rows = np.arange(len(labels))
    loss = float(-np.log(probabilities[rows, labels] + 1e-12).mean())
    error = probabilities.copy()
    error[rows, labels] -= 1
    error /= len(labels)
    back = (error @ weights[2].T) * (hidden > 0)
    return loss, [images.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0)]


def accuracy(weights: list[Floats], images: Floats, labels: NDArray[np.int64]) -> float:
    """The part of the images whose most probable class is right."""
    return float((forward(weights, images)[1].argmax(axis=1) == labels).mean())


def digits() -> tuple[Floats, NDArray[np.int64]]:
    """The images, scaled to 0..1, and their labels. Read from scikit-learn's folder: importing it takes a second."""
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise SystemExit("this example needs scikit-learn for its data: pip install scikit-learn")
    with gzip.open(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    return table[:, :PIXELS] / 16.0, table[:, PIXELS].astype(np.int64)


def train_epoch(training: Training, images: Floats, labels: NDArray[np.int64], step_ms: int) -> float:
    """One pass over the training images; until ``step_ms`` are over it evaluates the network again and again.

    Returns the mean loss. Raises Paused after a pause request.
    """
    until = time.monotonic() + step_ms / 1000
    while training.position < TRAIN:
        pause_if_requested(training)
        training.step(images[:TRAIN], labels[:TRAIN])
    while time.monotonic() < until:
        pause_if_requested(training)
        accuracy(training.weights, images[:200], labels[:200])
    return training.next_epoch()


def pause_if_requested(training: Training) -> None:
    if job.pause_requested():
        training.save(job.checkpoint_path(CHECKPOINT))
        raise Paused


def run(options: argparse.Namespace) -> None:
    images, labels = digits()
    training = Training(options.seed, options.width)
    if job.checkpoint_path(CHECKPOINT).exists():
        training.load(job.checkpoint_path(CHECKPOINT))
        print(f"resumed at epoch {training.epoch}", flush=True)
    while training.epoch < options.epochs:
        loss = train_epoch(training, images, labels, options.step_ms)
        job.report_progress(training.epoch, options.epochs, loss=loss)
        if training.epoch % options.save_every == 0 or training.epoch == options.epochs:
            training.save(job.checkpoint_path(CHECKPOINT))
        print(f"epoch {training.epoch} loss {loss:.4f}", flush=True)
    finish(training, images, labels)


def finish(training: Training, images: Floats, labels: NDArray[np.int64]) -> None:
    """Write the result, computed from the final weights, so that pauses do not change it."""
    loss = loss_and_gradients(training.weights, images[:TRAIN], labels[:TRAIN])[0]
    held_out = accuracy(training.weights, images[TRAIN:], labels[TRAIN:])
    result = {"epochs": training.epoch, "final_loss": loss, "accuracy": held_out}
    job.output_path("result.json").write_text(json.dumps(result) + "\n")
    job.complete()
    print(f"done final_loss {loss!r} accuracy {held_out:.4f}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Train, or continue from a checkpoint. Returns 0 when done, 75 when saved after a pause request."""
    parser = argparse.ArgumentParser(description="Learn handwritten digits.")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--width", type=int, default=128, help="neurons of the hidden layer: more is slower and better")
    parser.add_argument("--step-ms", type=int, default=0, help="minimum duration of an epoch")
    parser.add_argument("--save-every", type=int, default=5, help="epochs between two checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    try:
        run(parser.parse_args(arguments))
    except Paused:
        print("paused, saved", flush=True)
        return job.CHECKPOINTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
