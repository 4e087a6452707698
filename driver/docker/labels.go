package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/client"

	"mariposa"
)

const (
	// labelsTimeout is how long a registry may take to give the labels of an image.
	labelsTimeout = 2 * time.Second
	// maxManifest and maxConfig bound the documents of an image, in bytes.
	maxManifest, maxConfig = 1 << 20, 4 << 20
)

// labelsOfImage returns the labels of an image that its registry gives to a login. An engine
// tells the labels only of images that it has fetched, so the registry is asked for those of
// others. None if that fails: they are only shown.
func (d *Driver) labelsOfImage(ctx context.Context, image, digest string, login *mariposa.Login) mariposa.ImageLabels {
	ctx, cancel := context.WithTimeout(ctx, labelsTimeout)
	defer cancel()
	here, err := d.api().ImageInspect(ctx, repositoryOf(image)+"@"+digest)
	if err == nil && here.Config != nil {
		return mariposa.LabelsOf(here.Config.Labels)
	}
	r, err := d.registryOf(ctx, image, login)
	if err != nil {
		return mariposa.ImageLabels{}
	}
	defer r.close()
	labels, err := r.labels(ctx, digest)
	if err != nil {
		slog.Debug("the labels of an image are not known", "image", image, "err", err)
	}
	return mariposa.LabelsOf(labels)
}

// labelsByDigest returns the labels of an image that is named by its digest: those of the image
// that the engine has, if the login has access to it, or those that the registry gives to the
// login. An error means that they are not known here; another node may know them.
func (d *Driver) labelsByDigest(ctx context.Context, image, digest string, login *mariposa.Login) (none mariposa.ImageLabels, err error) {
	ctx, cancel := context.WithTimeout(ctx, labelsTimeout)
	defer cancel()
	here, err := d.api().ImageInspect(ctx, d.imageName(image))
	if err == nil && here.Config != nil && d.checkAccess(ctx, slices.Concat(here.RepoDigests, here.RepoTags), login) == nil {
		return mariposa.LabelsOf(here.Config.Labels), nil
	}
	r, err := d.registryOf(ctx, image, login)
	if err != nil {
		return none, d.explain(err)
	}
	defer r.close()
	labels, err := r.labels(ctx, digest)
	if err != nil {
		return none, fmt.Errorf("its labels are not known: %w", err)
	}
	return mariposa.LabelsOf(labels), nil
}

// registryOf returns the registry of an image, as the engine is configured to use it.
func (d *Driver) registryOf(ctx context.Context, image string, login *mariposa.Login) (*remoteRepository, error) {
	info, err := d.api().Info(ctx, client.InfoOptions{})
	if err != nil {
		return nil, err
	}
	host := mariposa.RegistryOf(image)
	name := strings.TrimPrefix(repositoryOf(image), host+"/")
	if host == mariposa.DefaultRegistry && !strings.Contains(name, "/") {
		name = "library/" + name
	}
	return newRemoteRepository(host, name, architectureOf(info.Info.Architecture), isInsecure(info.Info.RegistryConfig, host), login), nil
}

// architectureOf returns an architecture as images name it; the kernel has other names.
func architectureOf(kernel string) string {
	switch kernel {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return kernel
}

// document is what is needed of an index, a manifest and a configuration of an image.
type document struct {
	Manifests []struct {
		Digest   string `json:"digest"`
		Platform struct {
			OS           string `json:"os"`
			Architecture string `json:"architecture"`
		} `json:"platform"`
	} `json:"manifests"`
	Configuration struct {
		Digest string `json:"digest"`
		Labels map[string]string
	} `json:"config"`
}

// manifestTypes are the documents that a digest of an image can mean.
var manifestTypes = []string{
	"application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json",
	"application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json",
}

// labels returns the labels of an image: those in the configuration of its manifest, which an
// index has for each platform.
func (r *remoteRepository) labels(ctx context.Context, digest string) (map[string]string, error) {
	is, err := r.document(ctx, "manifests", digest, maxManifest)
	if err != nil {
		return nil, err
	}
	if len(is.Manifests) > 0 {
		at := 0
		for n, m := range slices.Backward(is.Manifests) {
			if m.Platform.OS == "linux" && m.Platform.Architecture == r.architecture {
				at = n
			}
		}
		if is, err = r.document(ctx, "manifests", is.Manifests[at].Digest, maxManifest); err != nil {
			return nil, err
		}
	}
	is, err = r.document(ctx, "blobs", is.Configuration.Digest, maxConfig)
	if err != nil {
		return nil, err
	}
	return is.Configuration.Labels, nil
}

// document fetches a document that has a digest, and compares it with the digest.
func (r *remoteRepository) document(ctx context.Context, kind, digest string, limit int64) (*document, error) {
	algorithm, want, _ := strings.Cut(digest, ":")
	if algorithm != "sha256" || len(want) != hex.EncodedLen(sha256.Size) || strings.Trim(want, "0123456789abcdef") != "" {
		return nil, errors.New("the registry names something without a SHA-256 digest")
	}
	b, err := r.get(ctx, kind+"/"+digest, limit)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != want {
		return nil, fmt.Errorf("the registry gives something else than %s", digest)
	}
	is := &document{}
	return is, json.Unmarshal(b, is)
}
