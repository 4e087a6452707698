package api

import (
	"regexp"
	"strconv"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

// OfProject are the parameters of every path that begins with a project.
type OfProject struct {
	Project      string `path:"project" doc:"its id or name" maxLength:"255"`
	Organization string `query:"organization" doc:"where the project's name is looked up"`
}

// InProject are the parameters that narrow a list to a project.
type InProject struct {
	Project      string `query:"project" doc:"the id or name of a project" maxLength:"255"`
	Organization string `query:"organization" doc:"where the project's name is looked up"`
}

var (
	label  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	likeID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
)

// checkName says whether a project can have a name. One that looks like an id
// would make paths ambiguous.
func checkName(name string) error {
	const rule = "must be 1 to 63 lower-case letters, digits and hyphens, with no hyphen at either end"
	field := func(code mariposa.FaultCode, message string) error {
		return &mariposa.Error{
			Code: mariposa.InvalidArgument, Message: "the name of the project " + message,
			Faults: []mariposa.Fault{{Field: "name", Code: code, Message: message}},
		}
	}
	switch {
	case name == "":
		return field(mariposa.FaultMissing, "is missing: pass it as ?name=")
	case !label.MatchString(name):
		return field(mariposa.FaultInvalid, rule)
	case likeID.MatchString(name):
		return field(mariposa.FaultInvalid, "must not look like an id")
	}
	return nil
}

// checkOrganization resolves an organization. There is one so far.
func checkOrganization(name string) (string, error) {
	if name != "" && name != contract.DefaultOrganization {
		return "", notFound("there is no organization %q", name)
	}
	return contract.DefaultOrganization, nil
}

// findProject finds a project by id or name. One that is being deleted has no
// name any more, but its id works until it is gone.
func (s *server) findProject(ref, organization string) (*store.Record, error) {
	org, err := checkOrganization(organization)
	if err != nil {
		return nil, err
	}
	if r := s.Picture.Get(mariposa.KindProject, ref); r != nil {
		return r, nil
	}
	if r := s.Picture.ProjectNamed(org, ref); r != nil {
		return r, nil
	}
	return nil, notFound("there is no project %q", ref)
}

// projectID resolves a filter by project. The id of a project that is gone is
// taken as it is: its history may still be there.
func (s *server) projectID(in InProject) (string, error) {
	if in.Project == "" {
		_, err := checkOrganization(in.Organization)
		return "", err
	}
	r, err := s.findProject(in.Project, in.Organization)
	switch {
	case err == nil:
		return r.ID, nil
	case likeID.MatchString(in.Project):
		return in.Project, nil
	}
	return "", err
}

// findNode finds a node by id or name.
func (s *server) findNode(ref string) (*store.Record, error) {
	if r := s.Picture.Get(mariposa.KindNode, ref); r != nil {
		return r, nil
	}
	for _, r := range s.Picture.All(mariposa.KindNode) {
		if r.Spec.(*mariposa.NodeSpec).Name == ref {
			return r, nil
		}
	}
	return nil, notFound("there is no node %q", ref)
}

// findInstance finds an instance by id, by name, or by the beginning of its id.
func (s *server) findInstance(ref string) (*store.Record, error) {
	if r := s.Picture.Get(mariposa.KindInstance, ref); r != nil {
		return r, nil
	}
	var found *store.Record
	for _, r := range s.Picture.All(mariposa.KindInstance) {
		if r.Spec.(*mariposa.InstanceSpec).Name != ref && (len(ref) < 4 || !strings.HasPrefix(r.ID, ref)) {
			continue
		}
		if found != nil {
			return nil, invalid("%q means more than one instance, %s and %s among them: use a whole id", ref, found.ID, r.ID)
		}
		found = r
	}
	if found == nil {
		return nil, notFound("there is no instance %q", ref)
	}
	return found, nil
}

// checkMarker says whether a marker is one that a page before may have named:
// the id of something that is there, or was.
func (s *server) checkMarker(kind mariposa.Kind, marker string) error {
	if marker != "" && !likeID.MatchString(marker) && s.Picture.Get(kind, marker) == nil {
		return invalid("marker must be what the page before named as its marker, not %q", shorten(marker))
	}
	return nil
}

// statusOf is a record's project status; nil before the first plan.
func statusOf(r *store.Record) *mariposa.ProjectStatus {
	if r == nil {
		return nil
	}
	st, _ := r.Status.(*mariposa.ProjectStatus)
	return st
}

func instanceStatus(r *store.Record) *mariposa.InstanceStatus {
	st, _ := r.Status.(*mariposa.InstanceStatus)
	return st
}

func nodeStatus(r *store.Record) *mariposa.NodeStatus {
	st, _ := r.Status.(*mariposa.NodeStatus)
	return st
}

func taskStatus(r *store.Record) *mariposa.TaskStatus {
	st, _ := r.Status.(*mariposa.TaskStatus)
	return st
}

// parseAmount reads how many at a time: a number above zero, or a percentage.
func parseAmount(field, text string) (mariposa.Amount, error) {
	if text == "" {
		return mariposa.Amount{}, nil
	}
	a, ok := mariposa.ParseAmount(text)
	if !ok || a.N == 0 {
		return a, invalid("%s must be a number above zero or a percentage like 25%%, not %q", field, text)
	}
	return a, nil
}

func parseRevision(field, text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, invalid("%s must be a revision, a number like 4711, not %q", field, text)
	}
	return n, nil
}
