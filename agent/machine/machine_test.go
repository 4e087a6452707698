package machine_test

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"mariposa"
	"mariposa/agent/machine"
)

func TestFactsAreReadFromTheFilesOfTheKernel(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for path, text := range map[string]string{
		"proc/sys/kernel/osrelease":      "6.12.1-test\n",
		"etc/os-release":                 "NAME=Test\nPRETTY_NAME=\"Test Linux 7\"\n",
		"proc/cpuinfo":                   "processor\t: 0\nmodel name\t: Test CPU @ 2 GHz\n\nprocessor\t: 1\nmodel name\t: other\n",
		"proc/meminfo":                   "MemTotal:        8000 kB\nMemFree: 1 kB\n",
		"proc/stat":                      "cpu  1 2 3\nbtime 1793491200\n",
		"sys/block/sda/size":             "2000\n",
		"sys/block/sda/queue/rotational": "1\n",
		"sys/block/sda/device/model":     "Spinning Disk   \n",
		"sys/block/nvme0n1/size":         "4000\n",
		"sys/block/loop0/size":           "100\n",
		"sys/block/sdb/size":             "0\n", // an empty slot
	} {
		file := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m := machine.Read(root, "v1.2.3")
	if m.Kernel != "6.12.1-test" || m.OS != "Test Linux 7" || m.CPUModel != "Test CPU @ 2 GHz" || m.Memory != 8000<<10 || m.Release != "v1.2.3" || !m.Booted.Equal(time.Unix(1793491200, 0)) {
		t.Errorf("got %+v", m)
	}
	want := []mariposa.Disk{{Name: "nvme0n1", Size: 4000 * 512}, {Name: "sda", Size: 2000 * 512, Model: "Spinning Disk", Rotational: true}}
	if !reflect.DeepEqual(m.Disks, want) {
		t.Errorf("got disks %+v", m.Disks)
	}
	if empty := machine.Read(t.TempDir(), ""); empty.CPUs == 0 || empty.Arch == "" || empty.Disks != nil || empty.Network != "" {
		t.Errorf("without files: %+v", empty)
	}
	if real := machine.Read("/", ""); real.Kernel == "" || real.Memory == 0 || real.Booted.IsZero() || len(real.Network) != 32 || real.Network != machine.Read("/", "").Network {
		t.Errorf("this machine: %+v", real)
	}
}
