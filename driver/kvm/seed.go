package kvm

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/bridge"
	"mariposa/driver/cidata"
	"mariposa/driver/mdata"
)

// keysKey is the value whose lines are the SSH keys of a machine, as guests of Triton know it.
const keysKey = "root_authorized_keys"

// seed returns the disk from which cloud-init configures a machine: its name, its network, its
// keys, its files and its volumes, and the script of the first boot.
func (d *Driver) seed(r *record, i driver.Instance, values []mariposa.Variable) ([]byte, error) {
	meta := map[string]any{"instance-id": r.ID, "local-hostname": hostname(r.Name, r.ID)}
	if keys := sshKeys(values); len(keys) > 0 {
		meta["public-keys"] = keys
	}
	files := map[string]any{"meta-data": meta}
	if len(r.Links) > 0 {
		files["network-config"] = d.networkConfig(r.Links, i)
	}
	all := map[string][]byte{"vendor-data": []byte("#cloud-config\n{}\n"), "user-data": userData(i)}
	for name, content := range files { // JSON is YAML
		b, err := json.MarshalIndent(content, "", "  ")
		if err != nil {
			return nil, err
		}
		all[name] = append(b, '\n')
	}
	return cidata.Build(all, time.Unix(0, 0))
}

func sshKeys(values []mariposa.Variable) (keys []string) {
	for _, v := range values {
		if v.Name != keysKey {
			continue
		}
		for line := range strings.Lines(v.Value) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				keys = append(keys, line)
			}
		}
	}
	return keys
}

// networkConfig returns the interfaces of a machine in version 2 of cloud-init's format.
func (d *Driver) networkConfig(links []bridge.Link, i driver.Instance) map[string]any {
	servers, search := d.resolver(i, links)
	ethernets := map[string]any{}
	for n, l := range links {
		e := map[string]any{"match": map[string]any{"macaddress": l.HardwareAddress()}, "addresses": []string{l.Address.String()}}
		if n == 0 {
			// As a route, it would need the program route in a guest with ifupdown.
			e["gateway4"] = l.Gateway.String()
			if names := map[string]any{}; len(servers)+len(search) > 0 {
				names["addresses"], names["search"] = notNil(servers), notNil(search)
				e["nameservers"] = names
			}
		}
		ethernets[fmt.Sprint("net", n)] = e
	}
	return map[string]any{"version": 2, "ethernets": ethernets}
}

// resolver returns the name servers of a machine, and the domains that it searches.
func (d *Driver) resolver(i driver.Instance, links []bridge.Link) (servers, search []string) {
	if d.options.Networks == nil {
		return i.Workload.DNS, i.Workload.DNSSearch
	}
	return d.options.Networks.Resolver(i, links)
}

func notNil(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// userData returns what a machine does at its first boot: it writes its files, mounts its volumes
// and runs its script.
func userData(i driver.Instance) []byte {
	config := map[string]any{}
	if len(sshKeys(i.Mdata.Values)) > 0 {
		config["disable_root"] = false // the keys are those of root
	}
	var files []any
	for _, f := range i.Workload.Files {
		files = append(files, map[string]any{"path": path.Clean(f.Name), "permissions": "0400", "content": f.Value})
	}
	if len(files) > 0 {
		config["write_files"] = files
	}
	var mounts, systems []any
	for _, v := range i.Volumes {
		device := "/dev/disk/by-id/virtio-" + serialOf(v.Name)
		systems = append(systems, map[string]any{"device": device, "filesystem": "ext4", "partition": "none", "overwrite": false})
		options := "defaults,nofail"
		if v.ReadOnly {
			options += ",ro"
		}
		mounts = append(mounts, []string{device, path.Clean(v.Path), "auto", options, "0", "0"})
	}
	if len(mounts) > 0 {
		config["fs_setup"], config["mounts"] = systems, mounts
	}
	text, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		panic(err) // it has texts only
	}
	parts := [][2]string{{"text/cloud-config", "#cloud-config\n" + string(text) + "\n"}}
	if script := script(i.Workload); script != "" {
		parts = append(parts, [2]string{"text/x-shellscript", script})
	}
	return mime(parts)
}

// mime joins parts of user data.
func mime(parts [][2]string) []byte {
	boundary := "=== mariposa ==="
	for n := 0; slices.ContainsFunc(parts, func(p [2]string) bool { return strings.Contains(p[1], boundary) }); n++ {
		boundary = fmt.Sprintf("=== mariposa %d ===", n)
	}
	var b strings.Builder
	b.WriteString("MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"" + boundary + "\"\n\n")
	for _, p := range parts {
		b.WriteString("--" + boundary + "\nContent-Type: " + p[0] + "; charset=\"utf-8\"\nContent-Transfer-Encoding: 8bit\n\n" + p[1] + "\n")
	}
	b.WriteString("--" + boundary + "--\n")
	return []byte(b.String())
}

// script returns the program that a machine runs at its first boot: its command, with its
// environment.
func script(w *mariposa.Workload) string {
	words := slices.Concat(w.Entrypoint, w.Command)
	if len(words) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("#!/bin/sh\n")
	for _, v := range w.Environment {
		b.WriteString("export " + v.Name + "=" + quoted(v.Value) + "\n")
	}
	if w.WorkingDir != "" {
		b.WriteString("cd " + quoted(w.WorkingDir) + " || exit 1\n")
	}
	b.WriteString("exec")
	for _, word := range words {
		b.WriteString(" " + quoted(word))
	}
	b.WriteString("\n")
	return b.String()
}

func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// fixed returns what a guest can read of itself over the metadata protocol.
func (d *Driver) fixed(r *record, i driver.Instance) map[string]string {
	g := mdata.Guest{ID: r.ID, Name: r.Name, Hostname: hostname(r.Name, r.ID), Image: r.Image, Links: r.Links, Script: script(i.Workload)}
	g.Resolvers, _ = d.resolver(i, r.Links)
	return g.Fixed()
}

// hostname returns the name of a machine as its network knows it.
func hostname(name, id string) string {
	if name == "" {
		name = id
	}
	name = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, name)
	return strings.Trim(name[:min(len(name), 63)], "-")
}

// bootArguments returns the command line of a kernel that is booted directly. An initial RAM disk
// that configures networks finds the address and a name server there.
func bootArguments(given string, r *record, servers []string) string {
	words := []string{given}
	if !strings.Contains(given, "console=") {
		words = append(words, "console=ttyS0")
	}
	if len(r.Links) > 0 && !strings.Contains(given, "ip=") {
		l := r.Links[0]
		word := fmt.Sprintf("ip=%s::%s:%s:%s:eth0:off", l.Address.Addr(), l.Gateway, mdata.Netmask(l.Address), hostname(r.Name, r.ID))
		if len(servers) > 0 && !strings.Contains(servers[0], ":") { // the kernel takes IPv4 only
			word += ":" + servers[0]
		}
		words = append(words, word)
	}
	return strings.TrimSpace(strings.Join(words, " "))
}
