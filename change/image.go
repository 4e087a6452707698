package change

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/manifest"
	"mariposa/picture"
	"mariposa/reason"
	"mariposa/store"
)

// A tag such as shop/web:1.4 can move. What it means is found out when a version is created
// that uses it for the first time, and stored with the version: whatever is created from the
// version later has the same image. Later versions keep it, until somebody asks for a
// refresh. The name of an image with a digest cannot move; its labels are looked up in the same
// way, because people want to see them.

// ResolveFunc finds out what names of images mean now. It takes a few seconds at most. A
// name that cannot be resolved has no digest, and the reason.
type ResolveFunc func(ctx context.Context, logins []mariposa.Login, names []string) map[string]mariposa.ImagePin

// resolve resolves names of images with the logins of an organization, which may be nil.
func (c *Changer) resolve(ctx context.Context, org *store.Organization, names []string) map[string]mariposa.ImagePin {
	var logins []mariposa.Login
	if org != nil && len(org.Spec().Registries) > 0 {
		var registries []string
		for _, name := range names {
			registries = append(registries, mariposa.RegistryOf(name))
		}
		all, err := c.Cache.Logins(ctx, org, registries...)
		if err != nil {
			slog.Warn("images are resolved without logins to their registries", "organization", org.Spec().Name, "err", err)
		}
		logins = all
	}
	pins := map[string]mariposa.ImagePin{}
	maps.Copy(pins, c.Resolve(ctx, logins, names))
	for _, name := range names {
		if digest := manifest.DigestIn(name); digest != "" {
			pin := mariposa.ImagePin{Digest: digest}
			if pins[name].Digest == digest {
				pin.ImageLabels = pins[name].ImageLabels
			}
			pins[name] = pin
		}
	}
	return pins
}

// organizationOf returns the organization of a project; nil if there is none.
func (c *Changer) organizationOf(project string) *store.Organization {
	r := c.Picture.Projects.Get(project)
	if r == nil {
		return nil
	}
	return c.Picture.Orgs.Get(r.Spec().Organization)
}

// resolveNew resolves the images of a manifest that a version does not use yet. It is called
// before a change begins: a registry may take its time.
func (c *Changer) resolveNew(ctx context.Context, org *store.Organization, m *manifest.Project, was *picture.Version) map[string]mariposa.ImagePin {
	if m == nil || c.Resolve == nil {
		return nil
	}
	used := map[string]bool{}
	if was != nil {
		for _, name := range imagesIn(was.Manifest) {
			_, known := was.Spec.Images[name]
			used[name] = known || manifest.DigestIn(name) == ""
		}
	}
	names := slices.DeleteFunc(imagesIn(m), func(name string) bool { return used[name] })
	if len(names) == 0 {
		return nil
	}
	return c.resolve(ctx, org, names)
}

// resolveEdit resolves the images of a rewritten manifest that the newest version does not
// use. It says nothing about what is wrong; the change does.
func (c *Changer) resolveEdit(ctx context.Context, project string, rewrite Rewrite) map[string]mariposa.ImagePin {
	r, newest := c.Picture.Projects.Get(project), c.newestOf(ctx, project)
	if newest == nil || c.Resolve == nil {
		return nil
	}
	_, b, err := rewrite(newest.Spec, r.Spec())
	if err != nil {
		return nil
	}
	m, err := manifest.Parse(b)
	if err != nil {
		return nil
	}
	return c.resolveNew(ctx, c.organizationOf(project), m, newest)
}

// newestOf returns the newest version of a project; nil if there is none.
func (c *Changer) newestOf(ctx context.Context, project string) *picture.Version {
	r := c.Picture.Projects.Get(project)
	if r == nil || r.Spec().Number == 0 {
		return nil
	}
	v, err := c.Cache.Version(ctx, project, r.Spec().Number)
	if err != nil {
		return nil // the change says what is wrong
	}
	return v
}

// pinnable returns the names of images whose meaning can change, of some services; of all if
// none is given.
func pinnable(m *manifest.Project, services []string) []string {
	return imageNames(m, func(svc *mariposa.Service) bool {
		return manifest.IsPinnable(svc) && (len(services) == 0 || slices.Contains(services, svc.Name))
	})
}

// imagesIn returns the names of all images of containers.
func imagesIn(m *manifest.Project) []string { return imageNames(m, manifest.HasImage) }

func imageNames(m *manifest.Project, wanted func(*mariposa.Service) bool) (names []string) {
	for _, svc := range m.Services {
		if wanted(svc) {
			names = append(names, svc.Image)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// pinImages returns what the images of a draft mean. Those that the version before uses mean
// the same as there, so that only a change of the manifest replaces instances.
func pinImages(d draft, was *picture.Version) map[string]mariposa.ImagePin {
	var before []string
	if was != nil {
		before = imagesIn(was.Manifest)
	}
	pins := map[string]mariposa.ImagePin{}
	for _, name := range imagesIn(d.parsed) {
		pin, ok := d.images[name]
		if !ok && d.cause != mariposa.CauseRefresh && slices.Contains(before, name) {
			if pin, ok = was.Spec.Images[name]; !ok && manifest.DigestIn(name) == "" {
				continue
			}
		}
		if !ok {
			pin, ok = d.resolved[name]
		}
		if ok {
			pins[name] = pin
		}
	}
	if len(pins) == 0 {
		return nil
	}
	return pins
}

func isRefreshed(d draft, was *picture.Version) bool {
	switch d.cause {
	case mariposa.CauseRefresh:
		return true
	case mariposa.CauseRevert:
		return d.refreshed
	}
	return was != nil && was.Spec.Refreshed
}

// hashedImages returns the images that are part of a version's hash.
func hashedImages(pins map[string]mariposa.ImagePin, refreshed bool) (parts []string) {
	if !refreshed {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(movable(pins))) {
		parts = append(parts, name+"@"+pins[name].Digest)
	}
	return parts
}

// movable returns what the names mean that can mean something else later.
func movable(pins map[string]mariposa.ImagePin) map[string]mariposa.ImagePin {
	pins = maps.Clone(pins)
	maps.DeleteFunc(pins, func(name string, _ mariposa.ImagePin) bool { return manifest.DigestIn(name) != "" })
	return pins
}

// sameDefinition reports whether two versions differ in values at most.
func sameDefinition(a, b *mariposa.VersionSpec) bool {
	return bytes.Equal(a.Manifest, b.Manifest) && maps.EqualFunc(movable(a.Images), movable(b.Images), func(a, b mariposa.ImagePin) bool { return a.Digest == b.Digest })
}

// Refresh asks to resolve images anew.
type Refresh struct {
	Services []string // by name; all if empty
	Message  string
	Rolling  mariposa.Amount
	Canary   mariposa.Amount
}

// RefreshImages resolves the images of a project anew. If one means something else now, it
// adds a version with the same manifest, and rolls it out.
func (c *Changer) RefreshImages(ctx context.Context, req *Request, project string, r Refresh) (*contract.Changed, error) {
	if len(r.Message) > maxMessage || !isText(r.Message) {
		return nil, invalid("message must be UTF-8 text without NUL bytes, of at most %d bytes", maxMessage)
	}
	newest := c.newestOf(ctx, project)
	if newest != nil {
		for _, name := range r.Services {
			if newest.Services[name] == nil {
				return nil, notFound("the newest version has no service %s", shorten(name))
			}
		}
	}
	now, err := c.resolveAll(ctx, c.organizationOf(project), newest, r.Services)
	if err != nil {
		return nil, err
	}
	return c.change(ctx, req, project, func(e *edit) (*attempt, error) {
		newest, err := e.newest()
		if err != nil {
			return nil, err
		}
		if newest == nil {
			return nil, e.errNewestLost()
		}
		var moved []string
		for _, name := range pinnable(newest.Manifest, r.Services) {
			if pin, ok := now[name]; ok && pin.Digest != newest.Spec.Images[name].Digest {
				moved = append(moved, name)
			}
		}
		if len(moved) == 0 {
			e.answer.Reason = "no image has moved"
			if len(now) == 0 {
				e.answer.Reason = "only images of containers can move, and only without a digest"
			}
			e.answer.Images = contract.ImagesOf(now)
			return &e.attempt, nil
		}
		d := draft{
			cause: mariposa.CauseRefresh, bytes: newest.Spec.Manifest, json: newest.Spec.JSON, parsed: newest.Manifest,
			images: maps.Clone(newest.Spec.Images), resolved: map[string]mariposa.ImagePin{},
		}
		for _, name := range moved {
			d.resolved[name] = now[name]
			delete(d.images, name)
		}
		if d.message = r.Message; d.message == "" {
			d.message = moveText(moved)
		}
		changed, err := e.addVersionTask(d, mariposa.Patch{Rolling: r.Rolling, Canary: r.Canary})
		if err != nil || !changed {
			return &e.attempt, err
		}
		return e.finish(d.message)
	})
}

func moveText(moved []string) string {
	if len(moved) == 1 {
		return "image " + moved[0] + " has moved"
	}
	shown := moved[:min(3, len(moved))]
	text := reason.Many(len(moved), "image") + " have moved: " + strings.Join(shown, ", ")
	if more := len(moved) - len(shown); more > 0 {
		text += " and " + reason.Many(more, "more")
	}
	return text
}

// resolveAll resolves images of a version. It fails if one cannot be resolved: the caller
// wants to know, and nothing has changed.
func (c *Changer) resolveAll(ctx context.Context, org *store.Organization, v *picture.Version, services []string) (map[string]mariposa.ImagePin, error) {
	if v == nil || c.Resolve == nil {
		return nil, nil
	}
	names := pinnable(v.Manifest, services)
	if len(names) == 0 {
		return nil, nil
	}
	pins := c.resolve(ctx, org, names)
	for _, name := range names {
		if pin := pins[name]; pin.Digest == "" {
			return nil, &mariposa.Error{Code: mariposa.Unavailable, Message: "cannot resolve image " + name + ": " + pin.Why}
		}
	}
	return pins, nil
}
