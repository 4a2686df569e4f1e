# Copyright (c) mmib contributors. All rights reserved.
"""The registry of policies, and names of types in configs.

Hook, sampler and loss are in the root registries of MMEngine, where configs of
any scope find them.
"""
import difflib
import inspect
from typing import Callable, Union

from mmengine.registry import Registry

from .. import plans
from ..errors import Refusal, check_no_others
from ..plans import Policy, as_policy

# Where a user finds the policy.
_PLACE = 'of InfoBatchHook in `custom_hooks`'
POLICIES = Registry('policy', scope='mmib', locations=['mmib.plans'])
for policy_type in (plans.EpsilonGreedy, plans.MeanThreshold, plans.Neyman,
                    plans.QuantileTiers, plans.RandomPruning, plans.ScoreOnly):
    POLICIES.register_module(module=policy_type)


def type_name(node: dict) -> str:
    """Return the name of a ``type``, which is a class, or a string with or
    without scope."""
    kind = node.get('type')
    return kind.__name__ if inspect.isclass(kind) else str(kind).rpartition(
        '.')[-1]


def build_policy(policy: Union[dict, Policy, Callable]) -> Policy:
    """Build a policy from the config of a registered policy, a policy, or a
    plain function ``policy(scores, rng) -> EpochPlan``.

    Raises:
        Refusal: If no policy has the ``type`` of the config, if ``policy`` is
            none of these, or its arguments are wrong.
    """
    if not isinstance(policy, dict):
        return as_policy(policy)
    # Without a scope the registry would look for policies in the default
    # scope of the config (mmseg) and warn that there are none.
    cfg = {'_scope_': POLICIES.scope, **policy}
    name = cfg.get('type')
    kind = POLICIES.get(name) if isinstance(name, str) else name
    if not callable(kind):
        known = {each.lower(): each for each in sorted(POLICIES.module_dict)}
        close = difflib.get_close_matches(str(name).lower(), known, 1)
        hint = f' (did you mean {known[close[0]]}?)' if close else ''
        raise Refusal(
            f'{name} is none of the policies {list(known.values())}{hint}: '
            'correct --policy of the command, or the `policy` of '
            'InfoBatchHook in `custom_hooks`, or name the module that '
            'registers it in `custom_imports`.')
    parameters = inspect.signature(kind).parameters
    if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        check_no_others(
            {
                argument: value
                for argument, value in cfg.items()
                if argument not in ('type', '_scope_', *parameters)
            }, kind, 'the `policy` of InfoBatchHook in `custom_hooks` '
            '(`_delete_=True` in it drops the inherited arguments)')
    try:
        built = POLICIES.build(cfg)
    except Refusal as error:
        raise Refusal(f'{error} The policy is `policy` {_PLACE}.') from None
    except TypeError as error:
        raise Refusal(
            f'{error}: change the arguments of `policy` {_PLACE}.') from error
    return as_policy(built)
