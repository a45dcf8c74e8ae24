"""The fake's routes of the quota file, the audit and the recovery of a database."""

from __future__ import annotations

from jupyter_gpu_quota import wire
from jupyter_gpu_quota.wire import quota as wire_quota
from jupyter_gpu_quota.wire import status as wire_status
from tests.client.fakes.resource import Fake
from tests.client.fakes.world import (
    AT,
    QUOTA_TEXT,
)


class Quota(Fake):
    def view(self, text: str = QUOTA_TEXT, revision: int = 4) -> wire_quota.QuotaView:
        return wire_quota.QuotaView(revision=revision, text=text, author="ann", at=AT, comment="first")

    def get(self) -> None:
        if self.request.path.endswith("revisions"):
            self.items([self.view(), self.view(revision=3)])
        else:
            self.answer(self.view())

    def put(self) -> None:
        edit: wire_quota.QuotaEdit = self.body(wire_quota.QuotaEdit)
        if not self.rests_on_4(edit.text):
            self.refuse(409, "stale", "The file was made from another revision; 4 is in force.")
        elif "overcommit" in edit.text and not edit.accept_overcommit:
            self.refuse(409, "overcommitted", "5 of 4 GPUs are promised.")
        else:
            self.answer(self.view(edit.text, 5))

    def post(self, revision: str | None = None) -> None:
        if revision == "4":
            self.answer(self.view().model_copy(update={"comment": "back to revision 1", "unchanged": True}))
            return
        if revision is not None:
            self.answer(self.view(revision=5).model_copy(update={"comment": f"back to revision {revision}"}))
            return
        edit: wire_quota.QuotaEdit = self.body(wire_quota.QuotaEdit)
        refusals = ["5 of 4 GPUs are promised."] if "overcommit" in edit.text else []
        paused = wire.AffectedView(
            job="B1", project="bobs", user="bob", effect="paused", message="its guarantee shrinks."
        )
        stale = None if self.rests_on_4(edit.text) else "The file was made from another revision; 4 is in force."
        removals = ["The file takes project bobs out, which has 1 job."] if "remove" in edit.text else []
        arithmetic = ["train: 2 + 2 = 4 of 4"]
        unchanged = ["Pool small: 1 device"] if "# small stays" in edit.text else []
        calendar = ["Calendar nights is taken out."] if "# nights" in edit.text else []
        self.answer(
            wire_quota.PreviewView(
                changes=["Project bobs, pool train: limit 3 instead of 2."] if "# raise" in edit.text else [],
                unchanged="# same" in edit.text,
                without_device=["train"] if "no device" in edit.text else [],
                arithmetic=[*arithmetic, *unchanged],
                unchanged_arithmetic=unchanged,
                calendar=calendar,
                refusals=refusals,
                removals=removals,
                stale=stale,
                affected=[paused],
            )
        )

    def rests_on_4(self, text: str) -> bool:
        header = self.request.headers.get("If-Match")
        return header == '"4"' if header else "revision: 4" in text


class Audit(Fake):
    def get(self) -> None:
        if self.request.path.endswith("verify"):
            message = "All 2 rows are intact." if self.world.audit_is_intact else "Row 2 does not follow from row 1."
            self.answer(wire.VerifiedView(intact=self.world.audit_is_intact, rows=2, message=message))
            return
        self.items(range(self.world.audit_rows, 0, -1), self.row)
        self.world.audit_rows += self.world.written_meanwhile

    @staticmethod
    def row(seq: int) -> wire.AuditView:
        return wire.AuditView(
            seq=seq,
            at=AT,
            actor="=ann",
            who="=ann",
            what="queued ann's job train",
            kind="submit",
            subject="J1",
            project="fraud",
            payload={"gpu": "1"},
            previous="0",
            hash="1",
        )


class Recovery(Fake):
    def get(self) -> None:
        self.answer(self._held(accepted=False))

    def post(self) -> None:
        self.answer(self._held(accepted=True))

    @staticmethod
    def _held(*, accepted: bool) -> wire_status.RecoveryView:
        why = ["The leader's fencing number is 3, and 7 was used already."]
        differences = ["Job J1 runs on d1 and is not in the database; it keeps its devices until it ends."]
        return wire_status.RecoveryView(held=True, since=AT, why=why, differences=differences, accepted=accepted)
