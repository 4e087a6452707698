package main_test

import (
	"slices"
	"strings"
	"testing"

	"mariposa"
	"mariposa/client"
)

func TestAVolumeOfADeletedProjectIsAttachedToAnother(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("shop", writerManifest(1, ""))
	h.converged("shop", "db", 1)
	lines := h.written(nil, 1, 1)["db.1"]
	v := h.volumes(client.VolumeFilter{})["db.1"]
	h.cannot("belongs to project shop: only volumes of deleted projects can be attached", "-j", "shop", "volume", "attach", v.ID, "--as", "db.2:data")
	h.ok("project", "delete", "shop", "-f", "--yes", "--wait")

	h.create("store", strings.NewReplacer("data:/", "files:/", "{data: }", "{data: , files: }", "_DATA", "_FILES").Replace(writerManifest(1, "")))
	h.converged("store", "db", 1)
	h.cannot("service db of project store does not use a volume data", "-j", "store", "volume", "attach", "db.1:data")
	h.cannot("db.1 of project store already has a volume files", "-j", "store", "volume", "attach", "db.1:data", "--as", "files")
	h.cannot("there is no project \"nothing\"", "-j", "nothing", "volume", "attach", "db.1:data")
	h.ok("project", "delete", "store", "-f", "--volumes", "--yes", "--wait")

	h.create("store", writerManifest(0, ""))
	h.await("it is planned", func() bool { return h.state("store").Status == mariposa.StatusConverged })
	out := h.ok("-j", "store", "volume", "attach", "db.1:data", "--as", "db.1:data")
	if !strings.Contains(out, "volume data is attached: db.1 of project store uses it from its next start on node ") {
		t.Errorf("it says %q", out)
	}
	h.ok("-j", "store", "volume", "attach", v.ID) // it is there already
	h.kill()
	h.start()
	h.ok("-j", "store", "project", "scale", "db=1", "--wait")
	h.await("the new instance goes on with the diary", func() bool {
		now := h.diaries()["db.1"]
		return len(now) == 2 && slices.Equal(now[:1], lines)
	})
	if is := h.volumes(client.VolumeFilter{Project: "store"})["db.1"]; is.ID != v.ID || is.Path != v.Path || is.ProjectName != "store" || is.InstanceName == "" {
		t.Errorf("it is %+v", is)
	}
	h.cannot("there is no volume \"db.1:data\" of a deleted project", "-j", "store", "volume", "attach", "db.1:data")

	page, err := h.Audit(t.Context(), client.AuditFilter{Action: "volume.attach", Project: "store"})
	if err != nil || !slices.ContainsFunc(page.Records, func(r mariposa.Audit) bool { return r.Outcome == mariposa.AuditDone && r.Object == v.ID }) {
		t.Errorf("the audit log has %+v, %v", page, err)
	}
	if seen := h.ok("events", "--json"); !strings.Contains(seen, "volume.attached") {
		t.Error("the feed does not tell of it")
	}
}
