# For the learning rate: the full training, and the plain one of half the
# iterations.
arms = dict(
    full=dict(seeds=2), short_50=dict(seeds=2, shorten=dict(ratio=0.5)))
