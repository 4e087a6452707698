package change

import (
	"context"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/manifest"
	"mariposa/store"
)

// PutPackage offers a size, or changes it.
func (c *Changer) PutPackage(ctx context.Context, req *Request, spec mariposa.PackageSpec) (*contract.Changed, error) {
	if err := checkText("family", spec.Family); err != nil {
		return nil, err
	}
	spec.Created, spec.Author = c.Clock.Now(), req.actor()
	return c.writePackage(ctx, req, store.Write{ID: spec.Name, Spec: &spec, Event: mariposa.Event{Kind: "package.updated"}})
}

// DeletePackage offers a size no longer.
func (c *Changer) DeletePackage(ctx context.Context, req *Request, name string) (*contract.Changed, error) {
	if c.Picture.Get(mariposa.KindPackage, name) == nil {
		return nil, notFound("there is no package %q", name)
	}
	return c.writePackage(ctx, req, store.Write{ID: name, Delete: true, Event: mariposa.Event{Kind: "package.deleted"}})
}

func (c *Changer) writePackage(ctx context.Context, req *Request, w store.Write) (*contract.Changed, error) {
	return c.commit(ctx, req, "package "+w.ID, func() (*attempt, error) {
		w.Kind, w.Event.Actor = mariposa.KindPackage, req.actor()
		a := &attempt{answer: contract.Changed{ID: w.ID, Name: w.ID}}
		a.unit = store.Unit{Writes: []store.Write{w}, Audit: []mariposa.Audit{{Kind: string(mariposa.KindPackage)}}}
		return a, nil
	})
}

// packages are the sizes that a manifest names, as they are now.
func (c *Changer) packages(m *manifest.Project) (map[string]mariposa.PackageSpec, error) {
	var named map[string]mariposa.PackageSpec
	var faults []mariposa.Fault
	for _, svc := range m.Services {
		if svc.Package == "" {
			continue
		}
		r := c.Picture.Get(mariposa.KindPackage, svc.Package)
		if r == nil {
			faults = append(faults, mariposa.Fault{
				Field: "services." + svc.Name + ".package", Code: mariposa.FaultUnknown,
				Message: "names the package " + svc.Package + ", which is not offered here" + c.offered(),
			})
			continue
		}
		if named == nil {
			named = map[string]mariposa.PackageSpec{}
		}
		named[svc.Package] = *r.Spec.(*mariposa.PackageSpec)
	}
	if len(faults) > 0 {
		return nil, &mariposa.Error{Code: mariposa.InvalidArgument, Message: faults[0].String(), Faults: faults}
	}
	return named, nil
}

func (c *Changer) offered() string {
	var names []string
	for _, r := range c.Picture.All(mariposa.KindPackage) {
		names = append(names, r.ID)
	}
	if len(names) == 0 {
		return "; none is: say memory and cpu instead"
	}
	return "; there are " + strings.Join(names[:min(len(names), 20)], ", ")
}
