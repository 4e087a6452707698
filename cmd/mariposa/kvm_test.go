package main_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"mariposa"
	"mariposa/contract"
	"mariposa/driver/kvm/guesttest"
)

// A service runs in virtual machines, from the manifest to the guest, and outlives the agent.
func TestAServiceRunsInVirtualMachines(t *testing.T) {
	t.Parallel()
	i := newIsland(t)
	kernel, err := guesttest.Kernel()
	must(t, err)
	initrd, err := guesttest.Initrd(t.Context())
	must(t, err)
	path := filepath.Join(t.TempDir(), "initrd")
	must(t, os.WriteFile(path, initrd, 0o600))
	i.ok("image", "import", kernel, "--initrd", path, "--append", guesttest.Append, "--name", "guest:1")
	i.ok("project", "create", "shop", "-m", fileOf(t, `
services:
  box:
    compute_type: vm
    image: guest:1
    command: [sh, -c, "echo first boot in $MODE mode in $(mdata-get color); (until nslookup box.svc.shop.admin.mariposa.internal >/tmp/found 2>&1; do sleep 1; done; echo found $(cat /tmp/found) by name) &"]
    environment: {MODE: test}
    mdata: {color: blue}
    memory: 128m
    ports: [8080]
    update: {min_healthy: 0}

`), "--wait")
	before := i.running("shop")
	if len(before) != 1 {
		t.Fatalf("%v run", before)
	}
	var one contract.Instance
	for _, one = range before {
		if one.ComputeType != mariposa.ComputeKVM || len(one.Addresses) != 1 || !strings.HasSuffix(one.Addresses[0], ":8080") {
			t.Errorf("it is %+v", one)
		}
	}
	i.await("its log", func() bool {
		logs := i.ok("-j", "shop", "logs")
		return strings.Contains(logs, "booted") && strings.Contains(logs, "first boot in test mode in blue")
	})

	// Inside the guest, its name leads to its address.
	address, _ := mariposa.SplitAddress(one.Addresses[0])
	i.await("the guest resolves its name", func() bool {
		return regexp.MustCompile(`found .*Address:? [^ ]*` + regexp.QuoteMeta(address) + `\b.* by name`).MatchString(i.ok("-j", "shop", "logs"))
	})

	// The agent and the server are killed. The machine runs on, and is taken over.
	end(i.dev)
	i.start()
	i.await("it runs as before", func() bool {
		now := i.running("shop")
		return len(now) == 1 && now[one.Name].PhysicalID == one.PhysicalID && one.PhysicalID != ""
	})
	if logs := i.ok("-j", "shop", "logs"); strings.Count(logs, "booted") != 1 {
		t.Errorf("it was booted again:\n%s", logs)
	}
	i.await("it still has its network", func() bool { return i.reaches(one) })

	// One whose QEMU is killed is replaced.
	must(t, syscall.Kill(atoi(i.details(one.ID)["pid"]), syscall.SIGKILL))
	i.await("it is replaced", func() bool {
		now := i.running("shop")
		return len(now) == 1 && now[one.Name].ID == ""
	})
	i.ok("project", "delete", "shop", "--yes", "-f", "--wait")
	i.ok("image", "rm", "guest:1")
}
