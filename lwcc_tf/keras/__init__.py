"""LWCC for Keras 3, under Horovod's names: `import lwcc_tf.keras as hvd`."""
