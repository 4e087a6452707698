package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// writerManifest is a service whose instances append lines to a file in their volume, by
// the path in the manifest and by the variable.
func writerManifest(scale int, more string) string {
	return fmt.Sprintf(`services:
  db:
    compute_type: process
    scale: %d
    command: [sh, -c, 'echo "$MARIPOSA_NAME" >> var/lib/data/diary; echo "$MARIPOSA_NAME" >> "$MARIPOSA_VOLUME_DATA/twice"; exec sleep 100000']
    volumes: [data:/var/lib/data]
    update: {min_healthy: 0, rolling: 2}
%svolumes: {data: }
`, scale, more)
}

// volumes returns the volumes by slot.
func (h *devServer) volumes(f client.VolumeFilter) map[string]contract.Volume {
	h.t.Helper()
	all, err := h.AllVolumes(h.t.Context(), f)
	must(h.t, err)
	out := map[string]contract.Volume{}
	for _, v := range all.Volumes {
		out[v.Slot] = v
	}
	return out
}

// diaries returns the contents of the volumes by slot.
func (h *devServer) diaries() map[string][]string {
	h.t.Helper()
	out := map[string][]string{}
	for slot, v := range h.volumes(client.VolumeFilter{}) {
		one, err1 := os.ReadFile(filepath.Join(v.Path, "diary"))
		two, err2 := os.ReadFile(filepath.Join(v.Path, "twice"))
		if err1 != nil || err2 != nil || len(two) == 0 {
			continue // it is being written
		}
		out[slot] = strings.Fields(string(one))
	}
	return out
}

// written waits until every slot's diary has at least more new lines and its beginning is
// unchanged.
func (h *devServer) written(before map[string][]string, slots, more int) map[string][]string {
	h.t.Helper()
	var now map[string][]string
	h.await(fmt.Sprintf("%d diaries have %d more lines", slots, more), func() bool {
		now = h.diaries()
		for slot, lines := range now {
			if len(lines) != len(before[slot])+more || !slices.Equal(lines[:len(before[slot])], before[slot]) {
				return false
			}
		}
		return len(now) == slots
	})
	return now
}

func TestAVolumeOutlivesWhateverHappensToItsInstances(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("shop", writerManifest(2, ""))
	h.converged("shop", "db", 2)
	lines := h.written(nil, 2, 1)
	volumes := h.volumes(client.VolumeFilter{Project: "shop"})
	for slot, v := range volumes {
		info, err := os.Stat(v.Path)
		if err != nil || info.Mode() != os.ModeDir|0o700 || v.State != "made" || v.InstanceName == "" {
			t.Errorf("%s: %+v, %v", slot, v, err)
		}
		if _, err := h.DeleteVolume(t.Context(), v.ID); mariposa.CodeOf(err) != mariposa.Conflict || !strings.Contains(err.Error(), v.InstanceName) {
			t.Errorf("deleting what %s uses: %v", v.InstanceName, err)
		}
	}

	h.ok("-j", "shop", "project", "reprovision", "--wait")
	lines = h.written(lines, 2, 1)
	for _, pid := range h.pids("shop") { // both instances crash; the task has ended, so both run
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	lines = h.written(lines, 2, 1)

	var pids map[string]int // the server is killed, and an instance while the server is down
	h.await("both run", func() bool { pids = h.pids("shop"); return len(pids) == 2 })
	h.kill()
	victim := slices.Sorted(maps.Keys(pids))[0]
	_ = syscall.Kill(pids[victim], syscall.SIGKILL)
	h.start()
	h.await("the victim is replaced", func() bool { now := h.pids("shop"); return len(now) == 2 && now[victim] == 0 })
	h.await("its diary goes on", func() bool {
		now := h.diaries()
		return len(now["db.1"])+len(now["db.2"]) == len(lines["db.1"])+len(lines["db.2"])+1
	})
	lines = h.diaries()

	h.ok("-j", "shop", "project", "scale", "db=0", "--wait")
	if len(h.volumes(client.VolumeFilter{Project: "shop"})) != 2 {
		t.Error("its volumes went with its instances")
	}
	h.ok("-j", "shop", "project", "scale", "db=2", "--wait")
	h.written(lines, 2, 1)
	for slot, v := range h.volumes(client.VolumeFilter{Project: "shop"}) {
		if v.ID != volumes[slot].ID || v.Node != volumes[slot].Node || v.Path != volumes[slot].Path {
			t.Errorf("%s is another one: %+v", slot, v)
		}
	}
	for _, i := range h.instances("shop") {
		if i.State == mariposa.StateRunning && (len(i.Volumes) != 1 || i.Volumes[0].Path != "/var/lib/data") {
			t.Errorf("%s says %+v", i.Name, i.Volumes)
		}
	}
	out := h.ok("-j", "shop", "instance", "exec", "db.1", "--", "sh", "-c", `wc -l < "$MARIPOSA_VOLUME_DATA/diary"`)
	if want := fmt.Sprint(len(h.diaries()["db.1"])); strings.TrimSpace(out) != want {
		t.Errorf("a command inside counts %q lines, want %s", out, want)
	}
}

func TestVolumesOfADeletedProjectAreKeptUnlessTheyAreDeletedToo(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("shop", writerManifest(1, ""))
	h.converged("shop", "db", 1)
	lines := h.written(nil, 1, 1)
	if out := h.ok("project", "delete", "shop", "-f", "--yes", "--wait"); !strings.Contains(out, "1 volume will move to organization admin") {
		t.Errorf("it says %q", out)
	}
	v := h.volumes(client.VolumeFilter{})["db.1"]
	if v.Project != "" || v.ProjectName != "shop" || v.OrganizationName != "admin" || v.State != "made" {
		t.Errorf("left is %+v", v)
	}
	h.written(lines, 1, 0)
	if out := h.ok("-o", "admin", "volume", "list"); !strings.Contains(out, "shop (gone)") || !strings.Contains(out, "db.1:data") {
		t.Errorf("the list says %q", out)
	}

	h.create("shop", writerManifest(2, "")) // same name, but new volumes
	h.converged("shop", "db", 2)
	h.await("its own are written", func() bool { return len(h.diaries()["db.2"]) == 1 })
	paths := []string{}
	for _, own := range h.volumes(client.VolumeFilter{Project: "shop"}) {
		paths = append(paths, own.Path)
	}
	h.ok("project", "delete", "shop", "-f", "--volumes", "--yes", "--wait")
	h.await("their folders are gone", func() bool {
		return !slices.ContainsFunc(paths, func(path string) bool { _, err := os.Stat(path); return err == nil })
	})
	h.await("they are off the books", func() bool { return len(h.volumes(client.VolumeFilter{})) == 1 })
	h.written(lines, 1, 0)

	stray := filepath.Join(filepath.Dir(v.Path), "0199aaaa-0000-7000-8000-000000000001") // the node does not know it
	must(t, os.Mkdir(stray, 0o700))
	h.kill()
	h.start()
	h.ok("volume", "rm", v.ID)
	h.await("its folder is gone", func() bool { _, err := os.Stat(v.Path); return os.IsNotExist(err) })
	h.await("it is off the books", func() bool { return len(h.volumes(client.VolumeFilter{})) == 0 })
	if _, err := os.Stat(stray); err != nil {
		t.Errorf("what nobody has spoken of is gone: %v", err)
	}
	seen := h.ok("events", "--json")
	for _, kind := range []string{"volume.created", "volume.made", "volume.left", "volume.deleting", "volume.deleted"} {
		if !strings.Contains(seen, kind) {
			t.Errorf("the feed does not tell of %s", kind)
		}
	}
}

// clearNodes deletes all projects and waits until nothing is left on any node: the server's
// directory does not include what the other nodes run.
func (a *splitSystem) clearNodes() {
	a.clear()
	ctx := context.Background()
	a.await("nothing is left on any node", func() bool {
		left, err := a.AllInstances(ctx, client.InstanceFilter{})
		if err != nil || len(left.Instances) > 0 {
			return false
		}
		projects, err := a.Projects(ctx, "") // a project that is being deleted cannot be deleted again
		return err == nil && len(projects.Projects) == 0
	})
}

func TestASlotWhoseNodeIsLostWaitsForItsVolume(t *testing.T) {
	t.Parallel()
	a := newSplitSystem(t)
	first := a.agent()
	a.launch([]string{"MARIPOSA_JOIN=" + a.joinToken()}, "agent", "--server", a.url, "--data", t.TempDir(), "--name", "node-b")
	t.Cleanup(a.clearNodes)
	a.await("both have joined", func() bool {
		nodes, err := a.Nodes(t.Context())
		return err == nil && len(nodes.Nodes) == 2
	})
	a.create("shop", writerManifest(2, "    reschedule: {after: 1}\n"))
	a.converged("shop", "db", 2)
	lines := a.written(nil, 2, 1)
	lost := ""
	for slot, v := range a.volumes(client.VolumeFilter{Project: "shop"}) {
		if v.NodeName == "node-a" {
			lost = slot
		}
	}
	if lost == "" {
		t.Fatal("both slots are on one node")
	}
	end(first)
	want := lost + " has its volume data on node node-a, which has been unknown since "
	a.await("the slot waits for its node", func() bool {
		s := a.state("shop")
		return s.Status == mariposa.StatusBlocked && strings.Contains(s.Reason, want) && strings.HasSuffix(s.Reason, "; it starts when the node returns")
	})
	a.must(a.Scale(t.Context(), "shop", map[string]string{"db": "3"})) // others continue
	a.await("a new slot is filled on the other node", func() bool {
		v, ok := a.volumes(client.VolumeFilter{Project: "shop"})["db.3"]
		return ok && v.NodeName == "node-b" && v.State == "made"
	})
	a.agent()
	a.converged("shop", "db", 3)
	now := a.diaries()
	for slot, was := range lines {
		if !slices.Equal(now[slot], was) {
			t.Errorf("%s was written by %v, then by %v", slot, was, now[slot])
		}
	}
	b, err := json.Marshal(a.volumes(client.VolumeFilter{Project: "shop"})[lost])
	if err != nil || !strings.Contains(string(b), `"node_name":"node-a"`) {
		t.Errorf("it moved: %s, %v", b, err)
	}
}
