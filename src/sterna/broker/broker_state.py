"""The state of a broker that outlives a restart: sessions, routes, retained messages, owners of sessions."""

from __future__ import annotations

from sterna.broker.access.access_register import AccessRegister
from sterna.broker.access.authorization import Permissions
from sterna.broker.access.identity import FOREIGN_PREFIX
from sterna.broker.counters import Counters
from sterna.broker.delivery.late_shares import LateShares
from sterna.broker.delivery.retained import Retained
from sterna.broker.delivery.routes import Routes
from sterna.broker.expressions.computations import Computations
from sterna.broker.kept_values import KeptValues
from sterna.broker.limits import Limits
from sterna.broker.session.outbox import Outbox
from sterna.broker.session.session import Session
from sterna.broker.session.session_quotas import SessionQuotas
from sterna.broker.work_budget import WorkBudget
from sterna.operators.functions import NO_FUNCTIONS, Functions
from sterna.operators.settings import OperatorSettings as OperatorSettings
from sterna.vocabulary.bounds import PUBLISHERS_MAX
from sterna.vocabulary.identity import VersionVector

#: (offset, node, epoch, sequence): before our message of that offset, from a node that had come so far.
Came = tuple[int, str, int, int]


class BrokerState:
    """The state that outlives a restart: the sessions, who wants what, what is retained."""

    def __init__(
        self, limits: Limits, operators: OperatorSettings | None = None, functions: Functions = NO_FUNCTIONS
    ) -> None:
        self.limits = limits
        self.sessions: dict[bytes, Session] = {}
        self.holdings = SessionQuotas(limits)
        self.work_budget = WorkBudget()
        self.routes = Routes(self.work_budget, Computations(limits, operators or OperatorSettings(), functions), limits)
        self.retained = Retained(limits)
        #: Bans, users and access rules that operators set while nodes run.
        self.access_register = AccessRegister()
        #: Values kept for those who are served in front of a foreign broker.
        self.kept_values = KeptValues()
        #: Outboxes with something to flush.
        self.dirty: list[Outbox] = []
        self.counters = Counters()
        #: How far the messages of other nodes have been read.
        self.vector: VersionVector = {}
        #: Members of shared subscriptions on other nodes: a message that enters here may be theirs at any time.
        self.shared: dict[str, list[tuple[bytes, int]]] = {}
        #: Of which shared subscriptions this node heard after messages of theirs had entered here.
        self.late_shares = LateShares()
        #: client id -> the node that owns its session (empty: none does), and the number under which.
        self.owners: dict[bytes, tuple[str, int]] = {}
        #: Of those that have a user: who that is, since which number, and whether it stands against others.
        self.whose: dict[bytes, tuple[str | None, int, bool]] = {}
        #: When publishers came from other nodes, those included that have left since.
        self.came: dict[Came, None] = {}
        #: Clients a second at which this node is being emptied; 0 if it is not.
        self.evacuated_at = 0.0
        #: Seconds by which the clock of some other node was ahead of ours, at most.
        self.clock_ahead_s = 0.0
        #: Running clock and wall clock at one moment, the last that is known; zeroes: none is.
        self.ran_until = (0.0, 0.0)
        #: When the last session was left, by the running clock, as far as the journal says.
        self.left_at = 0.0

    def publisher_came(self, came: Came) -> None:
        self.came[came] = None
        if len(self.came) > PUBLISHERS_MAX:
            del self.came[next(iter(self.came))]

    def new_session(self, client_id: bytes, user: str | None, permissions: Permissions) -> Session:
        session = Session(client_id, Outbox(self.dirty, self.counters), permissions, self.holdings)
        if client_id.startswith(FOREIGN_PREFIX.encode()):
            session.in_doubt = {}
        session.user = user
        self.sessions[client_id] = session
        return session

    def forget_session(self, session: Session) -> None:
        del self.sessions[session.client_id]
        session.gone()
