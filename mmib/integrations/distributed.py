# Copyright (c) mmib contributors. All rights reserved.
"""A Session in checkpoints of ``torch.distributed.checkpoint``."""
import io
from typing import Any, Dict

import torch

from ..session import Session


class DistributedState:
    """The state of a Session in a form that ``torch.distributed.checkpoint``
    can load.

    ``dcp.load`` takes the state of the new object as a template, into whose
    tensors it reads. A Session has tensors of other lengths at each position,
    so its whole state is one object of bytes. Save and load on all ranks.

    Args:
        session (Session): The Session.

    Examples:
        >>> state = dict(model=model, session=DistributedState(session))
        >>> dcp.save(state, checkpoint_id=folder)
        >>> dcp.load(state, checkpoint_id=folder)
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    def state_dict(self) -> Dict[str, Any]:
        """Return the state of the Session."""
        file = io.BytesIO()
        torch.save(self.session.state_dict(), file)
        return dict(infobatch=file.getvalue())

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Resume where :meth:`state_dict` was called."""
        file = io.BytesIO(state_dict['infobatch'])
        self.session.load_state_dict(torch.load(file, weights_only=True))
