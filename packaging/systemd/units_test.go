// Package systemd_test checks the systemd units that we ship: systemd must accept every
// line, and the agent's unit must not restrict what instances need.
package systemd_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// settings reads the [Service] section of a unit and returns all values of each setting.
func settings(t *testing.T, unit string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	all, section := map[string][]string{}, ""
	for n, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			section = line
		default:
			name, value, ok := strings.Cut(line, "=")
			if !ok || section == "" || strings.ContainsAny(name, " \t") {
				t.Errorf("%s:%d: not a setting: %s", unit, n+1, line)
			}
			if section == "[Service]" {
				all[name] = append(all[name], value)
			}
		}
	}
	return all
}

func TestUnitsAreUnderstoodBySystemd(t *testing.T) {
	t.Parallel()
	units, err := filepath.Glob("*.service")
	if err != nil || len(units) != 2 {
		t.Fatalf("units: %v, %v", units, err)
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "mariposa")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700); err != nil { //nolint:gosec // systemd checks that it is executable
		t.Fatal(err)
	}
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"ExecStart", "EnvironmentFile", "StateDirectory", "Restart"} {
			if len(settings(t, unit)[name]) != 1 {
				t.Errorf("%s has no %s, or more than one", unit, name)
			}
		}
		copied := filepath.Join(dir, unit)
		if err := os.WriteFile(copied, []byte(strings.ReplaceAll(string(text), "/usr/bin/mariposa", program)), 0o600); err != nil {
			t.Fatal(err)
		}
		analyze, err := exec.LookPath("systemd-analyze")
		if err != nil {
			continue // no systemd on this machine: only the checks above apply
		}
		out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", copied).CombinedOutput()
		var said []string
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, unit) { // the output also contains messages about other units
				said = append(said, line)
			}
		}
		if len(said) > 0 {
			t.Errorf("systemd-analyze verify (%v): %s", err, said)
		}
	}
}

// Instances inherit every setting of the agent's unit.
func TestTheAgentsUnitLeavesInstancesWhatTheyNeed(t *testing.T) {
	t.Parallel()
	s := settings(t, "mariposa-agent.service")
	for name, why := range map[string]string{
		"NoNewPrivileges":         "LXC changes the AppArmor profile of what it starts",
		"PrivateDevices":          "QEMU opens /dev/kvm and /dev/net/tun",
		"PrivateUsers":            "instances have users of the machine",
		"RestrictNamespaces":      "instances have namespaces of their own",
		"SystemCallFilter":        "containers bring filters of their own, and programs of instances need what they need",
		"MemoryDenyWriteExecute":  "programs of instances compile as they run",
		"RestrictSUIDSGID":        "instances unpack files with such bits",
		"RestrictAddressFamilies": "instances speak what they speak",
		"LockPersonality":         "QEMU and old programs set one",
		"ProtectHostname":         "containers have a name of their own",
		"ProtectControlGroups":    "a cgroup is made for each instance",
		"ProtectKernelTunables":   "networks and containers set tunables of their own namespaces",
		"PrivateTmp":              "sockets of engines may lie there",
		"ProtectHome":             "it takes a mount namespace, and engines look at the same files",
		"ProtectSystem":           "likewise",
		"SystemCallArchitectures": "instances may be of another one",
		"OOMScoreAdjust":          "instances would be spared too",
		"UMask":                   "instances would have it",
		"User":                    "isolation takes root",
		"DynamicUser":             "likewise",
	} {
		if _, set := s[name]; set {
			t.Errorf("%s is set, but %s", name, why)
		}
	}
	for name, value := range map[string]string{"KillMode": "process", "Delegate": "yes"} {
		if len(s[name]) != 1 || s[name][0] != value {
			t.Errorf("%s is %v, not %s: instances are to outlive the agent, in cgroups of theirs", name, s[name], value)
		}
	}
	bounds := s["CapabilityBoundingSet"]
	if len(bounds) != 1 || !strings.HasPrefix(bounds[0], "~") {
		t.Fatalf("CapabilityBoundingSet is %v", bounds)
	}
	for _, needed := range []string{"CAP_SETUID", "CAP_SETGID", "CAP_CHOWN", "CAP_KILL", "CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_NET_ADMIN", "CAP_DAC_OVERRIDE", "CAP_SYS_RESOURCE", "CAP_SYS_PTRACE", "CAP_MKNOD", "CAP_SYS_BOOT"} {
		if strings.Contains(bounds[0], needed+" ") || strings.HasSuffix(bounds[0], needed) {
			t.Errorf("%s is taken away, and isolation needs it", needed)
		}
	}
}

func TestTheServersUnitHasEveryWall(t *testing.T) {
	t.Parallel()
	s := settings(t, "mariposa-server.service")
	for _, name := range []string{
		"NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices", "PrivateUsers", "ProtectClock", "ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules",
		"ProtectKernelTunables", "ProtectControlGroups", "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID", "LockPersonality", "MemoryDenyWriteExecute", "DynamicUser",
	} {
		if len(s[name]) != 1 || s[name][0] != "yes" {
			t.Errorf("%s is %v", name, s[name])
		}
	}
	if got := s["CapabilityBoundingSet"]; len(got) != 1 || got[0] != "" {
		t.Errorf("it keeps the capabilities %v", got)
	}
	if got := s["ProtectSystem"]; len(got) != 1 || got[0] != "strict" {
		t.Errorf("ProtectSystem is %v", got)
	}
}
