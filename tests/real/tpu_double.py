"""The one call that takes hardware, `tf.tpu.experimental.initialize_tpu_system`, replaced: all before and after it is TensorFlow's own.

On a TPU the call returns the `Topology`, and from then on TensorFlow lists the TPU's devices, of which the resolver tells as
`TPUSystemMetadata` (tensorflow/python/distribute/cluster_resolver/tpu/tpu_cluster_resolver.py). So does this one. What it cannot do is
compute: under the strategy functions can be traced, not run.
"""

from __future__ import annotations

from typing import Any


def install(mesh_shape: list[int], coordinates: list[list[list[int]]]) -> None:
    """`coordinates`: by task, by device; `orchestrator.model.tpu_topology.Mesh.coordinates`."""
    import tensorflow as tf
    from tensorflow.python.client.session import _DeviceAttributes

    def initialize_tpu_system(cluster_resolver: Any = None) -> Any:
        topology = tf.tpu.experimental.Topology(mesh_shape=mesh_shape, device_coordinates=coordinates)
        job = "localhost" if cluster_resolver.master() == "" else cluster_resolver.get_job_name()
        devices = tuple(
            _DeviceAttributes(f"/job:{job}/replica:0/task:{task}/device:TPU:{number}", "TPU", 0, 0)
            for task, there in enumerate(coordinates)
            for number in range(len(there))
        )
        metadata = tf.tpu.experimental.TPUSystemMetadata(
            num_cores=len(devices),
            num_hosts=len(coordinates),
            num_of_cores_per_host=len(coordinates[0]),
            topology=topology,
            devices=devices,
        )
        cluster_resolver.get_tpu_system_metadata = lambda: metadata
        cluster_resolver.set_tpu_topology(topology.serialized())
        return topology

    tf.tpu.experimental.initialize_tpu_system = initialize_tpu_system
