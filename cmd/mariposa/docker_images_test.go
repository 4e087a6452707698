package main_test

import (
	"fmt"
	"strings"
	"testing"

	dockerclient "github.com/moby/moby/client"

	"mariposa"
	"mariposa/contract"
	"mariposa/driver/docker/enginetest"
)

// digests returns the digests of the images that the running instances of a project have.
func (a *containers) digests(project string) string {
	a.t.Helper()
	all := map[string]int{}
	for _, i := range a.instances(project) {
		if i.State == mariposa.StateRunning {
			all[i.Details["image_digest"]]++
		}
	}
	var texts []string
	for digest, n := range all {
		texts = append(texts, fmt.Sprintf("%d of %s", n, digest))
	}
	return strings.Join(texts, ", ")
}

// A tag that moves changes nothing that a version deploys: neither a larger scale, nor a
// repair, nor another version with the same image. A refresh does, and a revert goes back.
func TestAMovedTagChangesNothingWithoutARefresh(t *testing.T) {
	t.Parallel()
	a := newContainers(t)
	registry, err := a.engine.StartRegistry()
	must(t, err)
	t.Cleanup(registry.Stop)
	push := func(commit, version string) string {
		t.Helper()
		digest, err := registry.Push(t.Context(), "shop/web:1", "FROM "+enginetest.Image+"\nLABEL org.opencontainers.image.revision="+commit+" org.opencontainers.image.version="+version+"\n")
		must(t, err)
		return digest
	}
	want := func(when string, n int, digest string) {
		t.Helper()
		a.await(fmt.Sprintf("%s, %d run %s", when, n, digest), func() bool {
			return len(a.physical("shop")) == n && a.digests("shop") == fmt.Sprintf("%d of %s", n, digest)
		})
	}
	first := push("abc123", "1.4.2")
	a.start()
	image := registry.Host + "/shop/web:1"
	manifest := func(more string) string {
		return "services:\n  web:\n    image: " + image + "\n    update: {min_healthy: 0}\n" + more
	}
	made, err := a.CreateProject(t.Context(), "shop", []byte(manifest("")), "")
	must(t, err)
	if len(made.Images) != 1 || made.Images[0] != (contract.Image{Image: image, Digest: first, Version: "1.4.2", Revision: "abc123"}) {
		t.Fatalf("the images are %+v, want %s", made.Images, first)
	}
	want("at first", 1, first)
	for _, i := range a.instances("shop") {
		if i.Details["image"] != image || i.Details["image_revision"] != "abc123" || i.Details["image_version"] != "1.4.2" {
			t.Errorf("it is shown as %v", i.Details)
		}
	}

	second := push("def456", "1.4.3")
	if second == first {
		t.Fatal("both images are the same")
	}
	a.ok("-j", "shop", "project", "scale", "web=2", "--wait")
	want("with a larger scale", 2, first)
	for _, id := range a.physical("shop") {
		_, err := a.engine.API.ContainerKill(t.Context(), id, dockerclient.ContainerKillOptions{Signal: "KILL"})
		must(t, err)
		break
	}
	want("after a repair", 2, first)
	a.ok("-j", "shop", "project", "update", "-m", fileOf(t, manifest("    environment: {A: b}\n")), "--force", "--wait")
	want("with another version", 2, first)

	out := a.ok("-j", "shop", "project", "refresh", "--wait")
	if !strings.Contains(out, image+" is sha256:"+strings.TrimPrefix(second, "sha256:")[:12]+", version 1.4.3, commit def456\n") {
		t.Errorf("the refresh says\n%s", out)
	}
	want("after a refresh", 2, second)
	if out := a.ok("-j", "shop", "project", "refresh", "web"); !strings.Contains(out, "nothing to do; no image has moved") {
		t.Errorf("the second refresh says\n%s", out)
	}
	if out := a.ok("-j", "shop", "project", "version", "diff", "2", "3"); !strings.Contains(out, "web: replace (image.digest)") || !strings.Contains(out, "image web: version 1.4.2 → 1.4.3, commit abc123 → def456, digest sha256:") {
		t.Errorf("the difference is\n%s", out)
	}
	if _, said, _ := a.mariposa("", "-j", "shop", "project", "version", "get", "2"); !strings.Contains(said, "image "+image+" is "+first[:len("sha256:")+12]+", version 1.4.2, commit abc123\n") {
		t.Errorf("version 2 is introduced with\n%s", said)
	}
	versions, err := a.Versions(t.Context(), "shop")
	must(t, err)
	if v := versions.Versions[0]; v.Cause != "refresh" || v.Message != "image "+image+" has moved" || v.Images[0].Digest != second || v.Images[0].Version != "1.4.3" || v.Images[0].Revision != "def456" || v.Version == versions.Versions[1].Version {
		t.Errorf("the newest version is %+v", v)
	}
	a.ok("-j", "shop", "meta", "set", "unused", "1")
	want("after a change of values", 2, second)
	a.ok("-j", "shop", "project", "revert", "2", "--wait")
	want("after a revert", 2, first)

	// Without the registry, a refresh fails and says why. What is pinned runs on.
	registry.Stop()
	if _, said, code := a.mariposa("", "-j", "shop", "project", "refresh"); code != 1 || !strings.Contains(said, "cannot resolve image "+image) {
		t.Errorf("exit code %d: %s", code, said)
	}
	if _, said, code := a.mariposa("", "-j", "shop", "project", "refresh", "nothing"); code == 0 || !strings.Contains(said, "has no service nothing") {
		t.Errorf("exit code %d: %s", code, said)
	}
	a.ok("-j", "shop", "project", "scale", "web=3", "--wait")
	want("without the registry", 3, first)
}

// An image that was built on the node is not pinned, and the answer says so.
func TestAnImageThatNoRegistryKnowsIsNotPinned(t *testing.T) {
	t.Parallel()
	a := newContainers(t)
	a.start()
	made, err := a.CreateProject(t.Context(), "shop", []byte(boxes(1, "")), "")
	must(t, err)
	if len(made.Images) != 1 || made.Images[0].Digest != "" || !strings.Contains(made.Images[0].Reason, "no registry knows it") {
		t.Errorf("the images are %+v", made.Images)
	}
	a.converged("shop", "web", 1)
	if _, said, code := a.mariposa("", "-j", "shop", "project", "refresh"); code != 1 || !strings.Contains(said, "no registry knows it") {
		t.Errorf("exit code %d: %s", code, said)
	}
}

// An image that the manifest names by its digest shows its labels as one with a tag does. It
// cannot move, so a refresh does not look it up.
func TestAnImageNamedByItsDigestShowsItsLabels(t *testing.T) {
	t.Parallel()
	a := newContainers(t)
	registry, err := a.engine.StartRegistry()
	must(t, err)
	t.Cleanup(registry.Stop)
	a.start()
	push := func(commit, version string) contract.Image {
		t.Helper()
		digest, err := registry.Push(t.Context(), "shop/web:1", "FROM "+enginetest.Image+"\nLABEL org.opencontainers.image.revision="+commit+" org.opencontainers.image.version="+version+"\n")
		must(t, err)
		return contract.Image{Image: registry.Host + "/shop/web@" + digest, Digest: digest, Version: version, Revision: commit}
	}
	manifest := func(image string) string {
		return "services:\n  web:\n    image: " + image + "\n    update: {min_healthy: 0}\n"
	}
	first := push("abc123", "1.4.2")
	made, err := a.CreateProject(t.Context(), "shop", []byte(manifest(first.Image)), "")
	must(t, err)
	if len(made.Images) != 1 || made.Images[0] != first {
		t.Fatalf("the images are %+v, want %+v", made.Images, first)
	}
	a.converged("shop", "web", 1)
	second := push("def456", "1.4.3")
	change := "image web: version 1.4.2 → 1.4.3, commit abc123 → def456, digest " + first.Digest[:19] + " → " + second.Digest[:19]
	if out := a.ok("-j", "shop", "project", "plan", "-m", fileOf(t, manifest(second.Image))); !strings.Contains(out, "image.revision: abc123 → def456; image.version: 1.4.2 → 1.4.3") {
		t.Errorf("the plan is\n%s", out)
	}
	a.ok("-j", "shop", "project", "update", "-m", fileOf(t, manifest(second.Image)), "--force", "--wait")
	if out := a.ok("-j", "shop", "project", "version", "diff", "1", "2"); !strings.Contains(out, change) {
		t.Errorf("the difference is\n%s", out)
	}
	if _, said, _ := a.mariposa("", "-j", "shop", "project", "version", "get", "2"); !strings.Contains(said, " is "+second.Digest[:19]+", version 1.4.3, commit def456\n") {
		t.Errorf("version 2 is introduced with\n%s", said)
	}
	if out := a.ok("-j", "shop", "project", "refresh"); !strings.Contains(out, "only images of containers can move, and only without a digest") {
		t.Errorf("the refresh says\n%s", out)
	}

	// Later versions keep the labels, also if the registry is away. Without them, a new image is
	// deployed all the same.
	registry.Stop()
	a.ok("-j", "shop", "project", "update", "-m", fileOf(t, manifest(second.Image)+"    environment: {A: b}\n"), "--force", "--wait")
	versions, err := a.Versions(t.Context(), "shop")
	must(t, err)
	if v := versions.Versions[0]; len(v.Images) != 1 || v.Images[0] != second {
		t.Errorf("version 3 has the images %+v", v.Images)
	}
	unknown := registry.Host + "/shop/web@sha256:" + strings.Repeat("ab", 32)
	a.ok("-j", "shop", "project", "update", "-m", fileOf(t, manifest(unknown)), "--force")
	versions, err = a.Versions(t.Context(), "shop")
	must(t, err)
	if v := versions.Versions[0]; len(v.Images) != 1 || v.Images[0] != (contract.Image{Image: unknown, Digest: "sha256:" + strings.Repeat("ab", 32)}) {
		t.Errorf("version 4 has the images %+v", v.Images)
	}
}
