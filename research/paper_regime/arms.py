# Arms for `benchmarks.quality.run --arms-file`.
arms = dict(longer_steps=dict(short=True, lr_factor=1.8, keep_decay=True))
