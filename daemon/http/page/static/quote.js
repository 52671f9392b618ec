/* Texts as words of a shell and as literals of Python: any text, so that a copied line does what the button does. */
export function shell(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

export function python(literal) {
  if (literal === null) return 'None';
  if (literal === true) return 'True';
  if (literal === false) return 'False';
  if (Array.isArray(literal)) return `[${literal.map(python).join(', ')}]`;
  if (typeof literal === 'object') return `{${Object.entries(literal).map(([name, inner]) => `${JSON.stringify(name)}: ${python(inner)}`).join(', ')}}`;
  return typeof literal === 'string' ? JSON.stringify(literal) : String(literal);
}

export function pythonLine(run, method, positional, named, dotted = {}) {
  const words = [...positional.map(python), ...Object.entries(named).map(([name, literal]) => `${name}=${python(literal)}`)];
  if (Object.keys(dotted).length) words.push(`**${python(dotted)}`);
  return `from rftd import Client; Client().run(${JSON.stringify(run)}).${method}(${words.join(', ')})`;
}
