package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// sharingManifest is two services whose instances write their names to one shared volume.
func sharingManifest(scale int, more string) string {
	const command = `[sh, -c, 'echo "$MARIPOSA_NAME" >> "$MARIPOSA_VOLUME_FILES/diary"; exec sleep 100000']`
	return fmt.Sprintf(`services:
  one: {compute_type: process, scale: %d, command: %s, volumes: [files:/srv/files]}
  two: {compute_type: process, command: %s, volumes: [files:/files]}
volumes: {files: {shared: true%s}}
`, scale, command, command, more)
}

func TestServicesShareAVolumeOnItsNode(t *testing.T) {
	t.Parallel()
	a := newSplitSystem(t)
	a.env = []string{"MARIPOSA_DATA=" + a.data}
	a.agent()
	a.launch([]string{"MARIPOSA_JOIN=" + a.joinToken()}, "agent", "--server", a.url, "--data", t.TempDir(), "--name", "node-b")
	t.Cleanup(a.clearNodes)
	a.await("both have joined", func() bool {
		nodes, err := a.Nodes(t.Context())
		return err == nil && len(nodes.Nodes) == 2
	})
	a.create("shop", sharingManifest(3, ""))
	a.converged("shop", "one", 3)
	a.converged("shop", "two", 1)
	all, err := a.AllVolumes(t.Context(), client.VolumeFilter{Project: "shop"})
	must(t, err)
	if len(all.Volumes) != 1 || !all.Volumes[0].Shared || all.Volumes[0].Slot != "" || all.Volumes[0].ServiceName != "" {
		t.Fatalf("it has %+v", all.Volumes)
	}
	v := all.Volumes[0]
	var names []string
	for _, i := range a.instances("shop") {
		if i.NodeName != v.NodeName {
			t.Errorf("%s is on %s, and the volume on %s", i.Name, i.NodeName, v.NodeName)
		}
		names = append(names, i.Name)
	}
	diary := func() []string {
		b, _ := os.ReadFile(filepath.Join(v.Path, "diary")) // it may be written later
		lines := strings.Fields(string(b))
		slices.Sort(lines)
		return lines
	}
	slices.Sort(names)
	a.await("all have written", func() bool { return slices.Equal(diary(), names) })
	if out := a.ok("-j", "shop", "volume", "list"); !strings.Contains(out, "shared:files") {
		t.Errorf("the list says %q", out)
	}
	a.cannot("shared volume files is used by instance ", "-j", "shop", "volume", "rm", "shared:files", "--yes")

	a.ok("-j", "shop", "project", "reprovision", "--wait")
	a.await("the new ones have written too", func() bool { return len(diary()) == 8 })
	a.ok("-j", "shop", "project", "scale", "one=0", "two=0", "--wait")
	a.ok("-j", "shop", "project", "scale", "two=1", "--wait")
	a.await("it is used again", func() bool { return len(diary()) == 9 })

	a.ok("project", "delete", "shop", "-f", "--yes", "--wait") // what it leaves can be attached
	a.create("store", strings.Replace(sharingManifest(0, ""), "  two: {", "  two: {scale: 0, ", 1))
	a.await("it is planned", func() bool { return a.state("store").Status == mariposa.StatusConverged })
	a.ok("-j", "store", "volume", "attach", "shared:files")
	a.ok("-j", "store", "project", "scale", "two=1", "--wait")
	a.await("another project goes on with it", func() bool { return len(diary()) == 10 })
	left, err := a.AllVolumes(t.Context(), client.VolumeFilter{})
	must(t, err)
	if len(left.Volumes) != 1 || !slices.ContainsFunc(left.Volumes, func(is contract.Volume) bool { return is.ID == v.ID && is.ProjectName == "store" }) {
		t.Errorf("there are %+v", left.Volumes)
	}
}
