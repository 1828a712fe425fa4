"""How a fault is done and undone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from federator.testing.federation import STOP_TIMEOUT
from federator.testing.process_group import Process
from tests.robustness.federated_bed import FederatedBed
from tests.robustness.plan import Fault, Kind, Role

_PROGRAMS = {
    Role.APISERVER: ("kube-apiserver",),
    Role.ETCD: ("etcd",),
    Role.CONTROL_PLANE: ("kube-apiserver", "etcd"),
}


_STILL = 0.5
"""Seconds for which an aggregator stands still before it is killed, so that agents have sent what it never takes."""

Wait = Callable[[], Awaitable[None]]


async def inflict(subject: FederatedBed, fault: Fault, *, lasting: Wait, taken_over: Wait) -> None:
    """Does something to a process, waits, and undoes it; what is frozen is thawed also when the wait fails.

    Args:
        subject: whose process.
        fault: what, to which.
        lasting: the wait.
        taken_over: waits until another agent has taken over.

    Raises:
        AssertionError: a process of the federation did not end by itself when it was told to.
        TestbedError: it does not start again.
    """
    match fault.kind:
        case Kind.PAUSE:
            processes = _processes(subject, fault)
            for process in processes:
                process.pause()
            try:
                await lasting()
            finally:
                for process in reversed(processes):
                    process.resume()
        case Kind.SUPERSEDE:
            await _supersede(subject, fault, lasting=lasting, taken_over=taken_over)
        case Kind.KILL:
            processes = _processes(subject, fault)
            if fault.role is Role.AGGREGATOR:
                processes[0].pause()
                await asyncio.sleep(_STILL)
            for process in processes:
                process.kill()
            await lasting()
            await _start(subject, fault)
        case Kind.RESTART:
            await _stop(subject, fault)
            await lasting()
            await _start(subject, fault)


async def _supersede(subject: FederatedBed, fault: Fault, *, lasting: Wait, taken_over: Wait) -> None:
    first = subject.federation.processes[_name(fault)]
    first.pause()
    try:
        await lasting()
        subject.substitutes.start_agent(fault.cluster)
        await taken_over()
    finally:
        first.resume()
    await asyncio.sleep(fault.seconds)
    assert first.running, "an agent that was superseded waits"
    second = subject.substitutes.processes[_name(fault)]
    assert await second.stop(STOP_TIMEOUT), f"the second {second.name} did not end when it was told to"


def _processes(subject: FederatedBed, fault: Fault) -> list[Process]:
    if fault.role in _PROGRAMS:
        running = subject.bed[fault.cluster].processes
        return [running[name] for name in _PROGRAMS[fault.role]]
    return [subject.federation.processes[_name(fault)]]


async def _stop(subject: FederatedBed, fault: Fault) -> None:
    if fault.role is Role.CONTROL_PLANE:
        await subject.bed[fault.cluster].stop()
        return
    for process in _processes(subject, fault):
        by_itself = await process.stop(STOP_TIMEOUT)
        if fault.role in {Role.AGENT, Role.AGGREGATOR}:
            assert by_itself, f"{process.name} did not end when it was told to"
            assert process.exit_code == 0, f"{process.name} ended with {process.exit_code}"


async def _start(subject: FederatedBed, fault: Fault) -> None:
    match fault.role:
        case Role.AGGREGATOR:
            subject.federation.start_aggregator()
        case Role.AGENT:
            subject.federation.start_agent(fault.cluster)
        case _:
            await asyncio.shield(subject.bed[fault.cluster].start())


def _name(fault: Fault) -> str:
    return "aggregator" if fault.role is Role.AGGREGATOR else f"agent-{fault.cluster}"
