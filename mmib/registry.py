# Copyright (c) mmib contributors. All rights reserved.
"""Where mmib's parts are registered.

Hook, sampler and loss go to the root registries of MMEngine, so that configs
of any scope find them. Policies are a kind of their own.
"""
from typing import Callable, Union

from mmengine.registry import Registry

from . import pruning
from .pruning import Policy, as_policy

POLICIES = Registry('policy', scope='mmib', locations=['mmib.pruning'])
for policy_type in (pruning.AboveMean, pruning.Budget, pruning.EpsilonGreedy,
                    pruning.MeanThreshold, pruning.Neyman,
                    pruning.QuantileTiers, pruning.RandomPruning,
                    pruning.ShuffledTiers, pruning.Subset,
                    pruning.UpperConfidenceBound):
    POLICIES.register_module(module=policy_type)


def build_policy(policy: Union[dict, Policy, Callable]) -> Policy:
    """Build a pruning policy from its config.

    Args:
        policy (dict, Policy or Callable): Config with the ``type`` of a
            registered policy and its arguments, a policy, or a plain function
            ``policy(scores, rng) -> EpochPlan``.

    Returns:
        Policy: The policy.

    Raises:
        KeyError: If no policy has this ``type``.
        TypeError: If ``policy`` is none of these, or its arguments are wrong.
    """
    if callable(policy):
        return as_policy(policy)
    if not isinstance(policy, dict):
        raise TypeError(
            "`policy` must be a config such as dict(type='MeanThreshold'), "
            f'but got {policy!r}: change it at InfoBatchHook in '
            '`custom_hooks`.')
    # Without a scope the registry would look for policies in the default
    # scope of the config (mmseg) and warn that there are none.
    cfg = {'_scope_': POLICIES.scope, **policy}
    kind = cfg.get('type')
    if isinstance(kind, str) and POLICIES.get(kind) is None:
        raise KeyError(
            f'{kind} is none of the policies {sorted(POLICIES.module_dict)}: '
            'correct the `policy` of InfoBatchHook in `custom_hooks`, or name '
            'the module that registers it in `custom_imports`.')
    if isinstance(cfg.get('policy'), dict):  # Of Subset.
        cfg['policy'] = build_policy(cfg['policy'])
    try:
        built = POLICIES.build(cfg)
    except TypeError as error:
        raise TypeError(
            f'{error}: change the arguments of `policy` at InfoBatchHook in '
            '`custom_hooks`. (`_delete_=True` in it drops those of the policy '
            'that it inherits.)') from error
    return as_policy(built)
