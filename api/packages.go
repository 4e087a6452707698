package api

import (
	"context"
	"math"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/manifest"
	"mariposa/store"
)

func (s *server) listPackages(context.Context, *struct{}) (*document[contract.Packages], error) {
	all := contract.Packages{Packages: []contract.Package{}}
	for _, r := range s.Picture.All(mariposa.KindPackage) {
		spec := r.Spec.(*mariposa.PackageSpec)
		all.Packages = append(all.Packages, contract.Package{
			Name: spec.Name, Family: spec.Family, Memory: spec.Memory, CPU: float64(spec.MilliCPU) / 1000, Disk: spec.Disk,
		})
	}
	return answer(all)
}

// OfPackage are the parameters of a path that leads to a package.
type OfPackage struct {
	Package string `path:"package" maxLength:"63" pattern:"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$" patternDescription:"letters, digits, dots and hyphens"`
}

type putPackageInput struct {
	OfPackage
	Body contract.Package
}

func (s *server) putPackage(ctx context.Context, in *putPackageInput) (*document[contract.Changed], error) {
	if in.Body.Name != "" && in.Body.Name != in.Package {
		return nil, invalid("name: the path says %s, the body %s", in.Package, shorten(in.Body.Name))
	}
	if err := checkText("family", in.Body.Family); err != nil {
		return nil, err
	}
	spec := &mariposa.PackageSpec{
		Name: in.Package, Family: in.Body.Family, Memory: in.Body.Memory, MilliCPU: int64(math.Round(in.Body.CPU * 1000)), Disk: in.Body.Disk,
		Created: s.Clock.Now(), Author: actor(ctx),
	}
	return s.writePackage(ctx, store.Write{Kind: mariposa.KindPackage, ID: in.Package, Spec: spec, Event: mariposa.Event{Kind: "package.updated", Actor: actor(ctx)}})
}

func (s *server) deletePackage(ctx context.Context, in *OfPackage) (*document[contract.Changed], error) {
	if s.Picture.Get(mariposa.KindPackage, in.Package) == nil {
		return nil, notFound("there is no package %q", in.Package)
	}
	return s.writePackage(ctx, store.Write{Kind: mariposa.KindPackage, ID: in.Package, Delete: true, Event: mariposa.Event{Kind: "package.deleted", Actor: actor(ctx)}})
}

func (s *server) writePackage(ctx context.Context, w store.Write) (*document[contract.Changed], error) {
	changed, err := commit(ctx, s, "package "+w.ID, func() (*store.Unit, contract.Changed, error) {
		return &store.Unit{Writes: []store.Write{w}, Audit: []mariposa.Audit{{Kind: string(mariposa.KindPackage)}}}, contract.Changed{ID: w.ID, Name: w.ID}, nil
	})
	if err != nil {
		return nil, err
	}
	return answer(*changed)
}

// packages are the sizes that a manifest names, as they are now.
func (s *server) packages(m *manifest.Project) (map[string]mariposa.PackageSpec, error) {
	var named map[string]mariposa.PackageSpec
	var faults []mariposa.Fault
	for _, svc := range m.Services {
		if svc.Package == "" {
			continue
		}
		r := s.Picture.Get(mariposa.KindPackage, svc.Package)
		if r == nil {
			faults = append(faults, mariposa.Fault{
				Field: "services." + svc.Name + ".package", Code: mariposa.FaultUnknown,
				Message: "names the package " + svc.Package + ", which is not offered here" + s.offered(),
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

func (s *server) offered() string {
	var names []string
	for _, r := range s.Picture.All(mariposa.KindPackage) {
		names = append(names, r.ID)
	}
	if len(names) == 0 {
		return "; none is: say memory and cpu instead"
	}
	return "; there are " + strings.Join(names[:min(len(names), 20)], ", ")
}

func (s *server) rotateKeys(ctx context.Context, _ *struct{}) (*document[contract.KeyRotation], error) {
	name, n, err := s.Vault.Rotate(ctx, s.Store, func(int, int) {})
	if err != nil {
		return nil, err
	}
	a, doc := s.audited(ctx), contract.KeyRotation{Key: name, Rewrapped: n}
	a.Kind, a.ObjectName = string(mariposa.KindKey), name
	s.remember(ctx, a, doc)
	return answer(doc)
}
