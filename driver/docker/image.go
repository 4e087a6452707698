package docker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/client"

	"mariposa"
	"mariposa/driver"
)

// EnsureImage makes an image present in the engine.
func (d *Driver) EnsureImage(ctx context.Context, image string, login *mariposa.Login, report func(driver.Progress)) error {
	ctx, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if image == "" {
		return errors.New("it has no image")
	}
	image = d.imageName(image)
	here, err := d.api().ImageInspect(ctx, image)
	switch {
	case err == nil:
		err = d.checkAccess(ctx, slices.Concat(here.RepoDigests, here.RepoTags), login)
	case errdefs.IsNotFound(err):
		err = d.pull(ctx, image, login, report)
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return d.explain(err)
}

// pull fetches an image. The engine fetches its layers at once and reports each.
func (d *Driver) pull(ctx context.Context, image string, login *mariposa.Login, report func(driver.Progress)) error {
	if login != nil {
		if err := d.private.mark(repositoryOf(image)); err != nil {
			return err
		}
	}
	r, err := d.api().ImagePull(ctx, image, client.ImagePullOptions{RegistryAuth: encodeLogin(login)})
	if err != nil {
		return pullError(image, err)
	}
	defer r.Close() // it was only read
	layers := map[string]driver.Progress{}
	var last driver.Progress
	for m, err := range r.JSONMessages(ctx) {
		if err != nil {
			return pullError(image, err)
		}
		if m.Error != nil {
			return pullError(image, m.Error)
		}
		if m.Progress == nil || m.ID == "" || m.Progress.Total <= 0 || m.Status != "Downloading" {
			continue
		}
		layers[m.ID] = driver.Progress{Done: min(m.Progress.Current, m.Progress.Total), Total: m.Progress.Total}
		var sum driver.Progress
		for _, l := range layers {
			sum.Done, sum.Total = sum.Done+l.Done, sum.Total+l.Total
		}
		if sum.Total == last.Total && sum.Done <= last.Done {
			continue
		}
		last = sum
		report(sum)
	}
	return d.private.allow(repositoryOf(image), login)
}

// encodeLogin returns a login as the engine expects it; empty if there is none.
func encodeLogin(login *mariposa.Login) string {
	if login == nil {
		return ""
	}
	host := login.Registry
	if host == mariposa.DefaultRegistry {
		host = "https://index.docker.io/v1/" // its name among engines
	}
	b, _ := json.Marshal(registry.AuthConfig{Username: login.Username, Password: login.Password, ServerAddress: host}) // always marshals
	return base64.URLEncoding.EncodeToString(b)
}

// pullError says why an image cannot be fetched.
func pullError(image string, err error) error {
	text := err.Error()
	switch {
	case strings.Contains(text, "manifest unknown"), strings.Contains(text, "not found"):
		return fmt.Errorf("image %s does not exist in its registry: check its name and tag", image)
	case strings.Contains(text, "access denied"), strings.Contains(text, "unauthorized"), strings.Contains(text, "denied:"), strings.Contains(text, "no basic auth"):
		return fmt.Errorf("its registry refuses to give image %s: check the name, and the login of the organization (`mariposa org registry list`)", image)
	case strings.Contains(text, "no such host"), strings.Contains(text, "connection refused"), strings.Contains(text, "i/o timeout"),
		strings.Contains(text, "network is unreachable"), strings.Contains(text, "server misbehaving"), strings.Contains(text, "request canceled"):
		return fmt.Errorf("the registry of image %s cannot be reached: %s", image, lastPart(text))
	}
	return err
}

// ResolveImage returns the image that a name means now, with its labels. An image that was built
// here and has never been in a registry is meant by its name, whatever a registry says.
func (d *Driver) ResolveImage(ctx context.Context, image string, login *mariposa.Login) (pin mariposa.ImagePin, err error) {
	ctx, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return pin, err
	}
	defer leave()
	if _, digest, found := strings.Cut(image, "@"); found {
		pin.Digest = digest
		pin.ImageLabels, err = d.labelsByDigest(ctx, image, digest, login)
		return pin, err
	}
	if d.isPodman.Load() {
		return pin, errors.New("a node with Podman cannot ask its registry")
	}
	here, err := d.api().ImageInspect(ctx, image)
	isHere := err == nil
	switch {
	case isHere && len(here.RepoDigests) == 0:
		return pin, errors.New("it was built on a node, and no registry knows it")
	case err != nil && !errdefs.IsNotFound(err):
		return pin, d.explain(err)
	}
	is, err := d.api().DistributionInspect(ctx, image, client.DistributionInspectOptions{EncodedRegistryAuth: encodeLogin(login)})
	if err == nil {
		pin.Digest = is.Descriptor.Digest.String()
		pin.ImageLabels = d.labelsOfImage(ctx, image, pin.Digest, login)
		return pin, nil
	}
	if isHere { // what it meant when this node fetched it
		if pin.Digest = digestIn(here.RepoDigests, image); pin.Digest != "" {
			if d.private.isOpen(repositoryOf(image), login) && here.Config != nil {
				pin.ImageLabels = mariposa.LabelsOf(here.Config.Labels)
			}
			return pin, nil
		}
	}
	if ctx.Err() != nil {
		return pin, errors.New("its registry does not answer")
	}
	return pin, d.explain(pullError(image, err))
}

// digestIn returns the digest that an image has in the repository of a name.
func digestIn(digests []string, image string) string {
	for _, known := range digests {
		repository, digest, ok := strings.Cut(known, "@")
		if rest, is := strings.CutPrefix(image, repository); ok && is && (rest == "" || rest[0] == ':' && !strings.Contains(rest, "/")) {
			return digest
		}
	}
	return ""
}

// imageName returns the name of an image as the engine knows it. Podman refuses names with a tag
// and a digest; the digest says it all.
func (d *Driver) imageName(image string) string {
	name, digest, found := strings.Cut(image, "@")
	if !found || !d.isPodman.Load() {
		return image
	}
	if at := strings.LastIndexByte(name, ':'); at > strings.LastIndexByte(name, '/') {
		name = name[:at]
	}
	return name + "@" + digest
}

// isMissingImage reports whether a container cannot be created because the engine does not have
// its image.
func isMissingImage(err error) bool {
	return strings.Contains(strings.ToLower(err.Error()), "no such image") || strings.Contains(strings.ToLower(err.Error()), "image not known")
}

// lastPart returns the innermost part of an error's text.
func lastPart(text string) string {
	parts := strings.Split(text, ": ")
	return parts[len(parts)-1]
}
