# Copyright (c) mmib contributors. All rights reserved.
"""Where mmib's parts are registered.

Hook, sampler and loss go to the root registries of MMEngine, so that configs
of any scope find them. Policies are a kind of their own.
"""
from typing import Callable, Union

from mmengine.registry import Registry

POLICIES = Registry('policy', scope='mmib', locations=['mmib.pruning'])


def build_policy(policy: Union[dict, Callable]) -> Callable:
    """Build a pruning policy from its config.

    Args:
        policy (dict or Callable): Config with the ``type`` of a registered
            policy and its arguments, or a policy, which is returned as it is.

    Returns:
        Callable: ``policy(scores, rng) -> EpochPlan``.

    Raises:
        KeyError: If no policy has this ``type``.
        TypeError: If ``policy`` is neither, or its arguments are wrong.
    """
    if callable(policy):
        return policy
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
    try:
        return POLICIES.build(cfg)
    except TypeError as error:
        raise TypeError(
            f'{error}: change the arguments of `policy` at InfoBatchHook in '
            '`custom_hooks`. (`_delete_=True` in it drops those of the policy '
            'that it inherits.)') from error
