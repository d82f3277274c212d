from __future__ import annotations

from loadgen.sim.agenda import Agenda


def test_in_the_order_of_time_and_then_of_planning():
    agenda, seen = Agenda(), []

    def note(subject, now):
        seen.append((subject, now))
        if subject == "first":
            agenda.plan(1.0, note, "planned meanwhile")

    agenda.plan(2.0, note, "late")
    agenda.plan(1.0, note, "first")
    agenda.plan(1.0, note, "second")
    assert [agenda.carry_out_next() for _ in range(4)] == [1.0, 1.0, 1.0, 2.0]
    assert seen == [("first", 1.0), ("second", 1.0), ("planned meanwhile", 1.0), ("late", 2.0)]
