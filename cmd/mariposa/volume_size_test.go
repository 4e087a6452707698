package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/client"
)

// fillerManifest is a service whose instances fill their volume.
func fillerManifest(size string) string {
	return `services:
  db:
    compute_type: process
    command: [sh, -c, 'dd if=/dev/zero of="$MARIPOSA_VOLUME_DATA/big" bs=64k count=1000; rm var/lib/data/big; echo kept >> var/lib/data/diary; exec sleep 100000']
    volumes: [data:/var/lib/data]
volumes: {data: {size: ` + size + `}}
`
}

// mountsIn returns the mount points in a directory.
func mountsIn(t *testing.T, dir string) (found []string) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range strings.Lines(string(b)) {
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, dir+"/") {
			found = append(found, at)
		}
	}
	return found
}

func TestAVolumeHasTheSizeOfTheManifest(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("shop", fillerManifest("8m"))
	h.converged("shop", "db", 1)
	diary := func(lines int) {
		t.Helper()
		h.await("the diary is written", func() bool {
			b, err := os.ReadFile(filepath.Join(h.volumes(client.VolumeFilter{Project: "shop"})["db.1"].Path, "diary"))
			return err == nil && string(b) == strings.Repeat("kept\n", lines)
		})
	}
	diary(1)
	if out := h.ok("-j", "shop", "logs", "db"); !strings.Contains(out, "No space left on device") {
		t.Errorf("its log says %q", out)
	}
	v := h.volumes(client.VolumeFilter{Project: "shop"})["db.1"]
	if v.Size != 8<<20 || len(mountsIn(t, h.dir)) != 1 {
		t.Errorf("it is %+v, and mounted are %q", v, mountsIn(t, h.dir))
	}

	// The machine reboots: nothing runs or is mounted any more.
	h.kill()
	for pid := range h.processes() {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	h.await("nothing runs", func() bool { return len(h.processes()) == 0 })
	must(t, unix.Unmount(filepath.Dir(v.Path), 0))
	h.start()
	diary(2)
	h.converged("shop", "db", 1)

	file := filepath.Join(t.TempDir(), "smaller.yaml")
	must(t, os.WriteFile(file, []byte(fillerManifest("4m")), 0o600))
	why := "volume data of db.1 has 8 MiB and cannot become smaller: use at least that size"
	h.cannot(why, "-j", "shop", "project", "update", "-m", file, "--force")
	h.cannot(why, "-j", "shop", "project", "plan", "-m", file)
	must(t, os.WriteFile(file, []byte(fillerManifest("64m")), 0o600))
	h.ok("-j", "shop", "project", "update", "-m", file, "--force", "--wait")
	h.await("it has grown, or says why not", func() bool {
		v := h.volumes(client.VolumeFilter{Project: "shop"})["db.1"]
		var is unix.Statfs_t
		must(t, unix.Statfs(v.Path, &is))
		return v.State == "made" && v.Size == 64<<20 && (int64(is.Blocks)*is.Bsize > 32<<20 || strings.Contains(v.Reason, "CAP_SYS_RESOURCE"))
	})
	for _, i := range h.instances("shop") {
		if i.State == mariposa.StateRunning && i.Restarts > 0 {
			t.Errorf("%s was restarted", i.Name)
		}
	}
	diary(2)

	h.ok("project", "delete", "shop", "-f", "--volumes", "--yes", "--wait")
	h.await("nothing is mounted any more", func() bool { return len(mountsIn(t, h.dir)) == 0 })
	h.await("nothing of it is left", func() bool { return len(h.volumes(client.VolumeFilter{})) == 0 })
	left, err := os.ReadDir(filepath.Dir(filepath.Dir(filepath.Dir(v.Path))))
	if err != nil || len(left) != 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}
