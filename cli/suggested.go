package cli

import (
	"context"
	"errors"
	"regexp"
	"strings"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// A suggested command must work as it is, so it repeats the flags that select the
// organization and the project. Sentences of the server do not contain them: the server
// does not know how the project was named.

// commandPrefix returns the start of a command suggested to the user: it selects
// the same organization, and the project if there is one.
func (a *app) commandPrefix(project string) string {
	return "mariposa" + prefixed(" -o ", a.organizationFlag()) + prefixed(" -j ", project)
}

// samePrefix is commandPrefix for a command about the project that this one names.
func (a *app) samePrefix() string { return a.commandPrefix(a.projectFlag()) }

// projectFlag returns the project that the command line names, as an argument or with -j.
func (a *app) projectFlag() string {
	if a.named != "" || a.fromEnv["project"] {
		return a.named
	}
	return a.global.project
}

// inProjectCommand matches a command about the current project in a sentence of the
// server.
var inProjectCommand = regexp.MustCompile(`\bmariposa (project|meta|queue|instance|volume|version|service) `)

// namesProject matches a command that names its project as an argument, and needs no -j.
var namesProject = regexp.MustCompile(`^mariposa (?:project (?:converge|thaw|resume|stop) [a-z0-9]|instance rm [a-z0-9-]+/)`)

// repeatFlags repeats -o and -j in the commands that a sentence of the server suggests.
func (a *app) repeatFlags(sentence string) string { return withPrefix(sentence, a.samePrefix) }

// suggest is repeatFlags for a sentence about a project that the command line may not
// name, such as one of a list. The organization may be unknown.
func (a *app) suggest(project, organization, sentence string) string {
	return withPrefix(sentence, func() string {
		if project == "" || a.isNamed(project) {
			return a.samePrefix()
		}
		if a.isDefaultProject(project, organization) {
			return a.commandPrefix("")
		}
		if s, err := a.locate(); organization != "" && a.organizationFlag() == "" && (err != nil || s.org != organization) {
			return "mariposa -o " + organization + " -j " + project
		}
		return a.commandPrefix(project)
	})
}

// suggestForTask adds the flags to the commands in an error about a task. The command line
// may name neither its project nor its organization.
func (a *app) suggestForTask(ctx context.Context, c *client.Client, t *contract.Task, err error) error {
	var failed *mariposa.Error
	if !errors.As(err, &failed) || !inProjectCommand.MatchString(failed.Message) {
		return err
	}
	organization := ""
	if p, err := c.Project(ctx, t.Project); err == nil { // otherwise only the project is named
		organization = p.OrganizationName
	}
	with := *failed
	with.Message = a.suggest(t.ProjectName, organization, failed.Message)
	return &with
}

// isNamed reports whether a project is the one that the command line names. A command about
// all projects may name another one.
func (a *app) isNamed(project string) bool {
	named := a.projectFlag()
	return !a.everywhere && (named == project || wholeID.MatchString(named))
}

// isDefaultProject reports whether commands are about a project if they name none. The
// personal organization has no known name, so a project of a known one counts only if the
// organization is a default as well.
func (a *app) isDefaultProject(project, organization string) bool {
	if a.global.project != "" && !a.fromEnv["project"] {
		return false // the command line names another one
	}
	if named, err := a.anyProject(false); err != nil || named != project {
		return false
	}
	s, err := a.locate()
	return err == nil && (organization == "" || s.org == organization)
}

func withPrefix(sentence string, prefix func() string) string {
	if !inProjectCommand.MatchString(sentence) {
		return sentence
	}
	with := prefix()
	only, _, _ := strings.Cut(with, " -j ")
	var b strings.Builder
	end := 0
	for _, at := range inProjectCommand.FindAllStringIndex(sentence, -1) {
		b.WriteString(sentence[end:at[0]])
		if end = at[0] + len("mariposa"); namesProject.MatchString(sentence[at[0]:]) {
			b.WriteString(only)
		} else {
			b.WriteString(with)
		}
	}
	return b.String() + sentence[end:]
}

// suggestIn adds the flags to the reasons of projects and their services.
func (a *app) suggestIn(projects []contract.ProjectState) {
	for n := range projects {
		p := &projects[n]
		p.Reason = a.suggest(p.Name, p.OrganizationName, p.Reason)
		for i := range p.Services {
			p.Services[i].Reason = a.suggest(p.Name, p.OrganizationName, p.Services[i].Reason)
		}
	}
}
