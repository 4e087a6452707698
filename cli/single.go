package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	"github.com/spf13/cobra"

	"mariposa/client"
	"mariposa/contract"
	"mariposa/manifest"
)

// definition is the definition of a single instance, from flags.
type definition struct {
	kind, image, command, pkg, memory, cpu string
	env, ports                             []string
}

func (a *app) instanceCreate() *cobra.Command {
	var d definition
	var file string
	cmd := &cobra.Command{
		Use: "create NAME -m FILE | --compute-type TYPE ... [-- COMMAND...]", Short: "Create an unmanaged instance, which belongs to no service", Args: argsBetween(1, 1000),
		Long: "Create an unmanaged instance. It belongs to no service: nothing scales, repairs or replaces\nit.\n\n" +
			"The file contains the keys of one service, as in a manifest. Flags take precedence over the\nfile. The arguments after -- are the command.",
		Example:           "  mariposa -j shop instance create migrate --compute-type process -- /bin/migrate up\n  mariposa -j shop instance create shell -m shell.yaml --env MODE=test",
		ValidArgsFunction: cobra.NoFileCompletions, Annotations: map[string]string{nameArguments: "1"},
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		args, words := args[:1], args[1:]
		if len(words) > 0 && cmd.ArgsLenAtDash() != 1 {
			return Usage(fmt.Errorf("unexpected argument %q: put the command after --", words[0]))
		}
		keys, err := a.readDefinition(file)
		if err != nil {
			return err
		}
		if d.cpu != "" {
			if _, err := readCores(d.cpu); err != nil {
				return Usage(err)
			}
		}
		maps.Copy(keys, d.keys(words))
		c, project, err := a.onProject(nil)
		if err != nil {
			return err
		}
		done, err := c.CreateInstance(cmd.Context(), project, args[0], keys)
		return changed(a, done, a.noProject(err), "instance %s is being created", args[0])
	}
	documentFlag(cmd, &file, "definition")
	f := cmd.Flags()
	f.StringVar(&d.kind, "compute-type", "", "compute type: docker (default), process, dummy, …")
	f.StringVar(&d.image, "image", "", "image to run")
	f.StringVar(&d.command, "command", "", "command as one string, which is split into words")
	f.StringArrayVarP(&d.env, "env", "e", nil, "environment variable, as NAME=value (repeatable)")
	f.StringSliceVarP(&d.ports, "port", "p", nil, "port, such as 8080 or 443:8443 (repeatable)")
	f.StringVar(&d.pkg, "package", "", "package (named size)")
	f.StringVar(&d.memory, "memory", "", "memory limit, such as 512m")
	f.StringVar(&d.cpu, "cpu", "", "CPU limit in cores, such as 0.5")
	complete(cmd, "package", a.every(packageNames))
	return cmd
}

// keys returns the service keys that the flags set.
func (d definition) keys(command []string) map[string]any {
	keys := map[string]any{}
	for key, value := range map[string]string{"compute_type": d.kind, "image": d.image, "command": d.command, "package": d.pkg, "memory": d.memory} {
		if value != "" {
			keys[key] = value
		}
	}
	if d.cpu != "" {
		keys["cpu"] = json.Number(d.cpu)
	}
	if len(command) > 0 {
		keys["command"] = command
	}
	if len(d.env) > 0 {
		keys["environment"] = d.env
	}
	if len(d.ports) > 0 {
		keys["ports"] = d.ports
	}
	return keys
}

// readDefinition reads service keys from a file, if one is given.
func (a *app) readDefinition(file string) (map[string]any, error) {
	if file == "" {
		return map[string]any{}, nil
	}
	text, err := a.readDocument(file, "definition")
	if err != nil {
		return nil, err
	}
	doc, err := manifest.ReadJSON(text)
	if err != nil {
		return nil, err
	}
	keys, ok := doc.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s is not a mapping: it must contain the keys of one service, such as image and command", a.file)
	}
	return keys, nil
}

// instanceAct creates a command for an action on an instance.
func (a *app) instanceAct(action, short, effect string) *cobra.Command {
	return a.instanceChange(action, short, effect, func(ctx context.Context, c *client.Client, id string) (*contract.Changed, error) {
		return c.ActOnInstance(ctx, id, action)
	})
}

func (a *app) instanceRemove() *cobra.Command {
	var force bool
	cmd := a.instanceChange("rm", "Remove an unmanaged instance, or force an instance that is stopping to end", "is being removed", func(ctx context.Context, c *client.Client, id string) (*contract.Changed, error) {
		return c.DeleteInstance(ctx, id, force)
	})
	cmd.Long = "Remove an unmanaged instance. With --force, it gets no time to stop.\n\n" +
		"--force also ends an instance of a service that is already stopping. Use it if\n`stop.timeout` waits forever."
	cmd.Flags().BoolVarP(&force, "force", "f", false, "kill the instance without waiting for it to stop")
	return cmd
}

// instanceChange creates a command that changes one instance. It can wait for the task,
// if there is one.
func (a *app) instanceChange(use, short, effect string, do func(ctx context.Context, c *client.Client, id string) (*contract.Changed, error)) *cobra.Command {
	var wait bool
	cmd := a.onInstance(use, short, nil)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.change(cmd, wait, func(c *client.Client) (*contract.Changed, error) {
			id, err := a.instanceRef(cmd.Context(), c, args[0])
			if err != nil {
				return nil, err
			}
			done, err := do(cmd.Context(), c, id)
			err = notFound(err, a.samePrefix()+" instance list")
			if err == nil && !a.global.json {
				name := done.Name
				if use == "replace" {
					name = args[0] // the answer names the project, which has the new task
				}
				a.say("%s %s%s", name, effect, prefixed(": ", done.Reason))
			}
			return done, err
		})
	}
	waitFlag(cmd, &wait)
	return cmd
}
