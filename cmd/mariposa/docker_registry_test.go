package main_test

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
	"mariposa/driver/docker/enginetest"
)

// An organization logs in to a private registry. Others cannot use its images, although a node has
// them.
func TestPrivateImagesNeedALogin(t *testing.T) {
	t.Parallel()
	a := newContainers(t)
	registry, err := a.engine.StartPrivateRegistry()
	must(t, err)
	t.Cleanup(registry.Stop)
	digest, err := registry.Push(t.Context(), "shop/web:1", "FROM "+enginetest.Image+"\nLABEL org.opencontainers.image.version=\"0.9 \u202Ebeta\" org.opencontainers.image.revision="+strings.Repeat("f", 1000)+"\n")
	must(t, err)
	a.start()
	image := registry.Host + "/shop/web:1"
	using := func(image string) string {
		return fileOf(t, "services:\n  web:\n    image: "+image+"\n    update: {min_healthy: 0}\n")
	}
	manifest := using(image)
	for _, org := range []string{"acme", "beta", "gamma"} {
		a.ok("org", "create", org)
	}
	refused := func(org, image string) {
		t.Helper()
		project := org + "-shop"
		a.ok("-o", org, "project", "create", project, "-m", using(image))
		if out := a.ok("-o", org, "-j", project, "project", "version", "get", "1", "--json"); strings.Contains(out, "0.9 beta") {
			t.Errorf("%s sees the labels of a private image: %s", org, out)
		}
		a.await(org+" is refused", func() bool {
			out, _, _ := a.mariposa("", "-o", org, "-j", project, "instance", "list", "--all", "--json")
			return strings.Contains(out, "org registry list")
		})
		a.ok("-o", org, "project", "delete", project, "--yes", "-f", "--wait")
	}
	refused("beta", image)

	login := func(org, password string) {
		t.Helper()
		if out, said, code := a.mariposa(password+"\n", "org", "registry", "set", org, registry.Host, "--username", enginetest.RegistryUser); code != 0 || strings.Contains(out+said, password) {
			t.Fatalf("%d %s %s", code, out, said)
		}
	}
	login("acme", enginetest.RegistryPassword)
	a.ok("-o", "acme", "project", "create", "shop", "-m", manifest, "--wait")
	var version contract.Version
	must(t, json.Unmarshal([]byte(a.ok("-o", "acme", "-j", "shop", "project", "version", "get", "1", "--json")), &version))
	if is := version.Images[0]; is.Digest != digest || is.Version != "0.9 beta" || !strings.HasPrefix(is.Revision, "ffff") || len(is.Revision) > 128 {
		t.Errorf("the image is %+v", is)
	}
	var ids []string
	var list contract.Instances
	must(t, json.Unmarshal([]byte(a.ok("-o", "acme", "-j", "shop", "instance", "list", "--json")), &list))
	for _, listed := range list.Instances {
		i, err := a.Instance(t.Context(), listed.ID)
		must(t, err)
		ids = append(ids, i.Details["image_id"])
		if i.State != mariposa.StateRunning || i.Details["image_digest"] != digest {
			t.Errorf("it is %+v", i)
		}
	}
	if len(ids) != 1 {
		t.Fatalf("%v run", ids)
	}

	// The node has the image now. It is still not for everyone, whatever they call it.
	refused("beta", image)
	refused("beta", registry.Host+"/shop/web@"+digest)
	refused("beta", ids[0])
	refused("beta", strings.TrimPrefix(ids[0], "sha256:")[:7])
	login("gamma", "a guess")
	refused("gamma", image)
	end(a.parts[len(a.parts)-1]) // the agent
	a.start()
	refused("gamma", image)
	login("gamma", enginetest.RegistryPassword)
	a.ok("-o", "gamma", "project", "create", "also", "-m", manifest, "--wait")

	// Keys are rotated, and the login still works.
	a.ok("key", "rotate")
	a.ok("-o", "acme", "project", "create", "third", "-m", manifest, "--wait")

	out := a.ok("org", "registry", "list", "acme", "--json") + a.ok("-o", "acme", "org", "registries")
	if !strings.Contains(out, enginetest.RegistryUser) || strings.Contains(out, enginetest.RegistryPassword) {
		t.Errorf("the logins are shown as %s", out)
	}
	must(t, filepath.WalkDir(filepath.Dir(a.dir), func(path string, f fs.DirEntry, _ error) error {
		if f == nil || !f.Type().IsRegular() { // it may be gone
			return nil
		}
		if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte(enginetest.RegistryPassword)) {
			t.Errorf("%s contains the password", path)
		}
		return nil
	}))
	a.ok("org", "registry", "rm", "acme", registry.Host)
	for _, c := range []struct {
		why  string
		args []string
	}{
		{"has no login to registry", []string{"rm", "acme", registry.Host}},
		{"is not a registry", []string{"set", "acme", "shop/web:1", "--username", "u"}},
		{"--username is required", []string{"set", "acme", registry.Host}},
	} {
		if _, said, code := a.mariposa("secret", append([]string{"org", "registry"}, c.args...)...); code == 0 || !strings.Contains(said, c.why) {
			t.Errorf("%v: %d %s", c.args, code, said)
		}
	}
}
