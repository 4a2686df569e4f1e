# What weights do to the steps of an optimizer: at the same cost, pruned at
# random with the weights of the policy, and with these divided by their mean.
ratio = 0.6
policy = dict(type='RandomPruning')
arms = dict(
    short=dict(seeds=5, shorten=dict(ratio=ratio)),
    random=dict(
        seeds=5, convert=dict(ratio=ratio, policy=policy, normalize=False)),
    random_mean1=dict(
        seeds=5, convert=dict(ratio=ratio, policy=policy, normalize=True)))
