package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
	"mariposa/manifest"
)

func (a *app) metaCommand() *cobra.Command {
	return a.group("meta", "Manage the metadata and secrets of a project",
		a.metaList(), a.metaGet(), a.metaSet(), a.metaRemove(), a.metaCount("incr", "Increase a value", 1), a.metaCount("decr", "Decrease a value", -1),
		a.metaImport(), a.metaExport())
}

// maxShown is the number of characters of a value that a table shows.
const maxShown = 60

func (a *app) metaList() *cobra.Command {
	return a.ofProject(&cobra.Command{Use: "list", Short: "List the metadata of a project, with secrets masked", Args: argsBetween(0, 0)},
		func(ctx context.Context, c *client.Client, project string, _ []string) error {
			all, err := a.metadata(ctx, c, project, false)
			return show(a, all, a.noProject(err), func() {
				t := newTable("KEY", "VALUE", "CAS", "CHANGED?", "USED BY?", "ABOUT?").ifEmpty("no metadata yet: set some with `%s meta set KEY VALUE`", a.commandPrefix(project))
				for _, k := range all.Keys {
					age := "-"
					if k.Changed != nil {
						age = a.age(*k.Changed) + " ago"
					}
					t.add(cell{k.Key, bold}, valueCell(&k), text(dashIfEmpty(k.CAS)), text(age), text(dashIfEmpty(strings.Join(k.UsedBy, ","))), text(k.Description))
				}
				a.printTable(t)
				a.printMissing(a.organizationFlag(), project, declares(all.Keys), all.Missing)
			})
		})
}

// metadata reads a project's metadata. Secrets are masked unless reveal is set,
// even if the server did not mask them.
func (a *app) metadata(ctx context.Context, c *client.Client, project string, reveal bool) (*contract.Metadata, error) {
	all, err := c.Metadata(ctx, project, reveal)
	if err == nil && !reveal {
		for n := range all.Keys {
			if k := &all.Keys[n]; k.Secret {
				k.Value = mask(k.Value)
			}
		}
	}
	return all, err
}

// valueCell formats a value.
func valueCell(k *contract.MetadataKey) cell {
	switch {
	case k.Set && k.Protected:
		return cell{manifest.Mask + " (protected)", dim}
	case k.Set && k.Secret:
		return cell{manifest.Mask, dim}
	case k.Set:
		return text(cut(plain(k.Value), maxShown))
	case k.Default != "":
		return cell{cut(plain(k.Default), maxShown) + " (default)", dim}
	case k.Required:
		return cell{"(not set)", bad}
	}
	return cell{"(not set)", dim}
}

// declares returns the metadata declarations of a manifest, as the server lists them.
func declares(keys []contract.MetadataKey) *manifest.Project {
	p := &manifest.Project{}
	for _, k := range keys {
		p.Metadata = append(p.Metadata, manifest.Metadata{Name: k.Key, Description: k.Description, Secret: k.Secret, Required: k.Required})
	}
	slices.SortFunc(p.Metadata, func(a, b manifest.Metadata) int { return strings.Compare(a.Name, b.Name) })
	return p
}

func (a *app) metaGet() *cobra.Command {
	var reveal bool
	cmd := a.ofProject(&cobra.Command{Use: "get KEY", Short: "Print a value; secrets only with --reveal", Args: argsBetween(1, 1), ValidArgsFunction: a.wordsFrom(metaKeys)},
		func(ctx context.Context, c *client.Client, project string, args []string) error {
			if err := checkKey(args[0]); err != nil {
				return err
			}
			k, err := c.MetadataKey(ctx, project, args[0], reveal)
			switch {
			case err != nil:
				return a.noKey(err, project)
			case k.Secret && !reveal:
				k.Value = mask(k.Value) // even if the server did not
			}
			if a.global.json {
				return a.printJSON(k)
			}
			return a.printValue(project, k, reveal)
		})
	cmd.Flags().BoolVar(&reveal, "reveal", false, "show a secret if your role allows it; recorded in the audit log")
	return cmd
}

func (a *app) noKey(err error, project string) error {
	return notFound(err, a.commandPrefix(project)+" meta list")
}

func (a *app) printValue(project string, k *contract.MetadataKey, reveal bool) error {
	value := k.Value
	switch {
	case !k.Set && k.Default == "":
		return withHint(mariposa.Errorf(mariposa.ResourceNotFound, "%s is not set", k.Key), "set it with `%s meta set %s VALUE`", a.commandPrefix(project), k.Key)
	case !k.Set:
		value = k.Default
		a.note("%s is not set: this is its default", k.Key)
	case k.Secret && !reveal:
		a.note("%s is a secret: use --reveal to show it, if your role allows it", k.Key)
	}
	if a.env.Terminal(a.env.Stdout) {
		value = plainLines(value)
	}
	if !strings.HasSuffix(value, "\n") {
		value += "\n"
	}
	_, err := io.WriteString(a.env.Stdout, value)
	return err
}

// plainLines removes control characters but keeps the lines.
func plainLines(s string) string {
	lines := strings.Split(s, "\n")
	for n := range lines {
		lines[n] = plain(lines[n])
	}
	return strings.Join(lines, "\n")
}

func (a *app) metaRemove() *cobra.Command {
	return a.metaChange(&cobra.Command{Use: "rm KEY [CAS]", Short: "Remove a value", Aliases: []string{"unset"}, Args: argsBetween(1, 2), ValidArgsFunction: a.wordsFrom(metaKeys)},
		func(ctx context.Context, c *client.Client, project string, args []string) (*contract.Changed, error) {
			cas, err := readCAS(args[1:])
			if err = cmp.Or(checkKey(args[0]), err); err != nil {
				return nil, err
			}
			done, err := c.DeleteMetadata(ctx, project, args[0], cas)
			if err == nil && !a.global.json {
				a.say("%s: %s is removed, %s", project, args[0], versionWords(done))
			}
			return done, a.noKey(err, project)
		})
}

// metaCount creates a command that increments or decrements a value. It prints only the
// value, for scripts.
func (a *app) metaCount(verb, short string, sign int64) *cobra.Command {
	return a.metaChange(&cobra.Command{
		Use: verb + " KEY [N]", Short: short + " and print it", Args: argsBetween(1, 2), ValidArgsFunction: a.wordsFrom(metaKeys),
		Example: fmt.Sprintf("  BUILD=$(mariposa -j shop meta %s build)", verb),
	}, func(ctx context.Context, c *client.Client, project string, args []string) (*contract.Changed, error) {
		if err := checkKey(args[0]); err != nil {
			return nil, err
		}
		by := int64(1)
		if len(args) == 2 {
			n, err := strconv.ParseInt(args[1], 10, 64)
			if err != nil || n <= 0 {
				return nil, Usage(fmt.Errorf("%q is not a whole number of at least 1", args[1]))
			}
			by = n
		}
		done, err := c.CountMetadata(ctx, project, args[0], sign*by)
		if err == nil && !a.global.json {
			a.say("%s", done.Value)
		}
		return done, a.noKey(err, project)
	})
}

// metaChange creates a command that changes metadata. It prints the effect and can wait
// for the task, if there is one.
func (a *app) metaChange(cmd *cobra.Command, run func(ctx context.Context, c *client.Client, project string, args []string) (*contract.Changed, error)) *cobra.Command {
	var wait bool
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		project, err := a.projectName(nil)
		if err != nil {
			return err
		}
		return a.change(cmd, wait, func(c *client.Client) (*contract.Changed, error) {
			done, err := run(cmd.Context(), c, project, args)
			if err == nil && done != nil && !a.global.json {
				a.printConsequences(cmd.Context(), c, a.organizationFlag(), project, done)
			}
			return done, err
		})
	}
	waitFlag(cmd, &wait)
	return cmd
}

// printConsequences prints the effect of a metadata change.
func (a *app) printConsequences(ctx context.Context, c *client.Client, org string, project string, done *contract.Changed) {
	if done.Reason != "" {
		a.note("%s", a.suggest(project, "", done.Reason))
	}
	for _, i := range done.Images {
		if i.Digest == "" {
			a.note("image %s", imageWords(i))
		}
	}
	if len(done.Missing) == 0 {
		return
	}
	var declared *manifest.Project
	if all, err := c.Metadata(ctx, cmp.Or(done.ID, project), false); err == nil { // on an error, all keys are treated as plain values
		declared = declares(all.Keys)
	}
	a.printMissing(org, project, declared, done.Missing)
}

// versionWords names the version that a change created.
func versionWords(done *contract.Changed) string {
	if done.Version == "" && done.Number == 0 {
		return "no new version"
	}
	return "version " + versionOf(done.Number, done.Version)
}

func (a *app) metaExport() *cobra.Command {
	var reveal bool
	cmd := a.ofProject(&cobra.Command{
		Use: "export", Short: "Print the metadata of a project as YAML; secrets only with --reveal", Args: argsBetween(0, 0),
		Long: "Print the metadata of a project as YAML, byte for byte as it was imported, except for\nsecrets.\n\n" +
			"Secrets are masked unless you use --reveal. You can import the output again: a masked secret\nstays unchanged.",
	}, func(ctx context.Context, c *client.Client, project string, _ []string) error {
		if a.global.json {
			all, err := a.metadata(ctx, c, project, reveal)
			return show(a, all, a.noProject(err), nil)
		}
		doc, err := c.MetadataDocument(ctx, project, reveal)
		if err != nil {
			return a.noProject(err)
		}
		_, err = a.env.Stdout.Write(doc)
		return err
	})
	cmd.Flags().BoolVar(&reveal, "reveal", false, "show secrets if your role allows it; recorded in the audit log")
	return cmd
}

var keyName = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)

// checkKey rejects an invalid key before it becomes part of a URL, which may be logged:
// the key may be a misplaced secret.
func checkKey(key string) error {
	if !keyName.MatchString(key) {
		return Usage(errors.New("invalid key: use letters, digits, dots, dashes and underscores"))
	}
	return nil
}

// readCAS parses the optional CAS, the last argument. It is checked for the same reason.
func readCAS(words []string) (string, error) {
	switch {
	case len(words) == 0:
		return "", nil
	case len(words) > 1 || !isNumber(words[0]):
		return "", Usage(errors.New("too many arguments, or the CAS is not a number: put a value that contains spaces in quotes"))
	}
	return words[0], nil
}

func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 63)
	return err == nil
}

var errNoValue = errors.New("no value given: pass it as an argument, with --from-file FILE, or use - for standard input")
