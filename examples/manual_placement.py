"""Operations placed by hand: a product of matrices on each device, the sum of them on the CPU.

    orch up examples/manual_placement.py --strategy none --cpus 3
    orch up examples/manual_placement.py --strategy none --set defaults.devices.logical_gpus=1024,1024    # two devices out of one GPU
    orch up examples/manual_placement.py --strategy none --cpus 3 --log-placement       # where each operation ran

How the 64 pixels of the digits vary together is a sum over images, so each device takes its part of the images. The devices come
from the settings of the run; `tf.device` is all that is said here. By hand there is one device, and the same result.
"""

import sys

import digits
import numpy as np
import tensorflow as tf


def main():
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    print("devices:", ", ".join(f"{device.device_type}:{device.name.rpartition(':')[2]}" for device in devices))

    with tf.device("/CPU:0"):  # the data stays where it was read, and is copied from there
        images = tf.constant(digits.load("train")[0])
        parts = tf.split(images, [len(part) for part in np.array_split(images, len(devices))])

    products = []
    for device, part in zip(devices, parts, strict=True):
        with tf.device(device.name):
            products.append(tf.matmul(part, part, transpose_a=True))
    print("products on:", ", ".join(sorted({name(product) for product in products})))

    with tf.device("/CPU:0"):
        total = tf.add_n(products)
    print("sum on:", name(total))

    expected = np.asarray(images).T @ np.asarray(images)
    error = float(np.max(np.abs(total - expected)) / np.max(np.abs(expected)))
    print(f"difference from one device: {error:.1e}")
    if error > 1e-4:
        sys.exit(1)


def name(tensor):
    """``CPU:1``, whatever the process is called."""
    return tensor.device.rpartition("device:")[2]


if __name__ == "__main__":
    main()
