package picture

import "mariposa"

// Approval says which protected secrets of its project a version uses, and who has
// approved that; nil: nobody has. A version that uses none needs no approval.
func (v *Version) Approval(project *mariposa.ProjectSpec) (uses []string, by *mariposa.Approval) {
	if uses = v.Manifest.UsesAny(project.Protected); len(uses) == 0 {
		return nil, nil
	}
	return uses, project.Approval(v.Content(project))
}

// NeedsApproval lists the protected secrets that a version uses without an operator
// having approved it.
func (v *Version) NeedsApproval(project *mariposa.ProjectSpec) []string {
	uses, by := v.Approval(project)
	if by != nil {
		return nil
	}
	return uses
}

// Content identifies what an approval of a version is of.
func (v *Version) Content(project *mariposa.ProjectSpec) string {
	return v.Manifest.Content(v.Spec.Manifest, v.Values, project.Protected, v.mac)
}
