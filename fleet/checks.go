package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"

	"mariposa"
	"mariposa/manifest"
	"mariposa/picture"
	"mariposa/store"
	"mariposa/wire"
)

// checksOf returns the health checks of an instance and their digest; nil: it has none. The part of
// the digest before a dot is that of its service's checks.
func (s *Session) checksOf(ctx context.Context, id string, spec *mariposa.InstanceSpec, def *mariposa.Service, v *picture.Version, project *store.Project) (*wire.Checks, string) {
	if def.ChecksDigest == "" {
		return nil, ""
	}
	if !manifest.HasOwnChecks(def) {
		return &wire.Checks{List: def.Checks(), Grace: def.Grace}, def.ChecksDigest
	}
	list, err := manifest.ResolveChecks(def, s.scope(ctx, id, spec, v, project))
	if err != nil { // the instance runs without them; the others of its node must not wait
		slog.Warn("cannot resolve the health checks of an instance", "instance", spec.Name, "err", err)
		return nil, ""
	}
	checks := &wire.Checks{List: list, Grace: def.Grace}
	b, _ := json.Marshal(checks) // never fails
	sum := sha256.Sum256(b)
	return checks, def.ChecksDigest + "." + hex.EncodeToString(sum[:16])
}

// checkedDefinition returns the definition whose health checks apply to an instance: the one
// in force, unless a rollout has to replace the instance. What the new version answers, an
// old instance may not know, so it keeps the checks that were in force before.
func (s *Session) checkedDefinition(ctx context.Context, spec *mariposa.InstanceSpec, project *store.Project, inForce *mariposa.Service, v *picture.Version) (*mariposa.Service, *picture.Version, error) {
	isOf := func(def *mariposa.Service) bool {
		return def != nil && mariposa.FormOf(def.Digest) == mariposa.FormOf(spec.Digest)
	}
	if !spec.Managed || isOf(inForce) {
		return inForce, v, nil
	}
	numbers := []int{spec.Number}
	if st := project.Status(); st != nil {
		if ss := st.Services[spec.ServiceName]; ss != nil && ss.Rollout != nil && ss.Rollout.From > spec.Number {
			numbers = []int{ss.Rollout.From, spec.Number} // checks may have changed since the instance was created
		}
	}
	for _, number := range numbers {
		def, of, err := s.definition(ctx, spec, number)
		if err != nil && !errors.Is(err, errLost) {
			return nil, nil, err
		}
		if isOf(def) {
			return def, of, nil
		}
	}
	return inForce, v, nil
}

// addChecks adds the health checks of an instance to those of a frame and returns their
// key. Instances with the same checks share them.
func addChecks(a *wire.Assign, digest string, checks *wire.Checks) string {
	if checks == nil {
		return ""
	}
	if a.Checks == nil {
		a.Checks = map[string]*wire.Checks{}
	}
	a.Checks[digest] = checks
	return digest
}
