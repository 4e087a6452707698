package api

import (
	"context"
	"math"

	"mariposa"
	"mariposa/contract"
)

func (s *server) listPackages(context.Context, *struct{}) (*document[contract.Packages], error) {
	all := contract.Packages{Packages: []contract.Package{}}
	for _, r := range s.Picture.Packages.All() {
		spec := r.Spec()
		all.Packages = append(all.Packages, contract.Package{
			Name: spec.Name, Family: spec.Family, Memory: spec.Memory, CPU: float64(spec.MilliCPU) / 1000, Disk: spec.Disk,
		})
	}
	return answer(all)
}

// OfPackage are the parameters of paths to a package.
type OfPackage struct {
	Package string `path:"package" maxLength:"63" pattern:"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$" patternDescription:"letters, digits, dots and hyphens"`
}

type putPackageInput struct {
	OfPackage
	Body contract.Package
}

func (s *server) putPackage(ctx context.Context, in *putPackageInput) (*document[contract.Changed], error) {
	if in.Body.Name != "" && in.Body.Name != in.Package {
		return nil, invalid("name: %s in the path, but %s in the request body", in.Package, shortenText(in.Body.Name))
	}
	return changed(s.change.PutPackage(ctx, request(ctx), mariposa.PackageSpec{
		Name: in.Package, Family: in.Body.Family, Memory: in.Body.Memory, MilliCPU: int64(math.Round(in.Body.CPU * 1000)), Disk: in.Body.Disk,
	}))
}

func (s *server) deletePackage(ctx context.Context, in *OfPackage) (*document[contract.Changed], error) {
	return changed(s.change.DeletePackage(ctx, request(ctx), in.Package))
}

func (s *server) rotateKeys(ctx context.Context, _ *struct{}) (*document[contract.KeyRotation], error) {
	name, n, err := s.Vault.Rotate(ctx, s.Store, func(int, int) {})
	if err != nil {
		return nil, err
	}
	a, doc := sessionOf(ctx).Audit(), contract.KeyRotation{Key: name, Rewrapped: n}
	a.Kind, a.ObjectName = string(mariposa.KindKey), name
	s.recordAnswer(ctx, a, doc)
	return answer(doc)
}
