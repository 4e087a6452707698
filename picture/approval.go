package picture

import "mariposa"

// Approval returns the protected secrets of the project that a version uses, and who
// approved their use; nil: nobody. A version that uses none needs no approval.
func (v *Version) Approval(project *mariposa.ProjectSpec) (uses []string, by *mariposa.Approval) {
	if uses = v.Manifest.UsesAny(project.Protected); len(uses) == 0 {
		return nil, nil
	}
	return uses, project.Approval(v.Content(project))
}

// NeedsApproval lists the protected secrets that a version uses and that no operator has
// approved.
func (v *Version) NeedsApproval(project *mariposa.ProjectSpec) []string {
	uses, by := v.Approval(project)
	if by != nil {
		return nil
	}
	return uses
}

// Content identifies the content that an approval of a version covers.
func (v *Version) Content(project *mariposa.ProjectSpec) string {
	return v.Manifest.Content(v.Spec.Manifest, v.Values, project.Protected, v.mac)
}
